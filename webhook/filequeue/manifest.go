package filequeue

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hookferry/analytics/internal/disk"
)

// The file MANIFEST has three pages. The first one names the format of the folder. The other two have
// a mark each; see manifest.set. Each page has one line, with spaces behind the text.
const (
	manifestMagic = "hookferry store "
	manifestStart = manifestMagic + "10"
	manifestPage  = 4096
)

// A mark says in which segment the log ends, and at which offset of it. So Open notices if the latest
// segment is missing or too short. The log may have grown since. The zero mark stands for an empty
// log.
type mark struct {
	segment segmentID
	end     int64
}

// line appends the line about a mark to b.
func (m mark) line(b []byte) []byte {
	from := len(b)
	b = strconv.AppendInt(append(m.segment.append(b), ' '), m.end, 10)
	sum := crc32.Checksum(b[from:], castagnoli)
	at := len(b)
	b = strconv.AppendUint(b, 1<<32|uint64(sum), 16) // 8 digits behind the first one
	b[at] = ' '
	return b
}

// parseMark decodes a line about a mark. ok reports whether the line is valid.
func parseMark(line string) (m mark, ok bool) {
	fmt.Sscanf(line, "segment-%d-%x.log %d", &m.segment.number, &m.segment.salt, &m.end)
	return m, line == string(m.line(nil))
}

// after reports whether a mark is later than another one of the same folder.
func (m mark) after(n mark) bool {
	return m.segment.number > n.segment.number || m.segment.number == n.segment.number && m.end > n.end
}

var errEmpty = fmt.Errorf("%w: it is empty", ErrDamaged)

// A manifest is the file MANIFEST. Of its two pages for marks, only one is written until a sync has
// made it durable; then the other one is. So whatever a crash, a loss of power or an error of the disk
// does to the page that is written, the other one still has a mark.
type manifest struct {
	mark    mark      // the latest one
	durable mark      // on the other page
	file    disk.File // nil until the method open
	page    int64     // the page for the next mark
	written bool      // whether a sync makes that page durable
	flushed time.Time
	buf     []byte
}

// readManifest reads the manifest of a folder. It returns errEmpty if the folder has no file of a
// store.
func readManifest(d disk.Disk) (*manifest, error) {
	f, err := d.Open(manifestName)
	var b []byte
	if err == nil {
		defer f.Close()
		b, err = io.ReadAll(io.NewSectionReader(f, 0, 4*manifestPage))
	} else if errors.Is(err, fs.ErrNotExist) {
		var files []disk.Info
		if files, err = d.List(); err == nil {
			if slices.ContainsFunc(files, func(f disk.Info) bool { return f.Name != lockName && f.Name != nextName }) {
				return nil, fmt.Errorf("%w: it has files, but no %s", ErrDamaged, manifestName)
			}
			return nil, errEmpty
		}
	}
	if err != nil {
		return nil, fmt.Errorf("filequeue: %w", err)
	}
	start, _, _ := strings.Cut(string(b), "\n")
	start = strings.TrimRight(start, " ")
	m := &manifest{page: 1}
	var pages []string
	valid := 0
	if start == manifestStart && len(b) > manifestPage {
		pages = []string{string(b[manifestPage:min(2*manifestPage, len(b))]), string(b[min(2*manifestPage, len(b)):])}
	}
	for i, page := range pages {
		// One mark may be damaged: the process ended while it wrote the page. If both are valid, the later
		// one may not be durable.
		at, ok := parseMark(strings.TrimSpace(page))
		switch {
		case !ok:
			continue
		case valid == 0:
			m.mark, m.durable, m.page = at, at, int64(2-i)
		case at.after(m.mark):
			m.mark, m.page = at, int64(1+i)
		default:
			m.durable, m.page = at, int64(2-i)
		}
		valid++
	}
	switch {
	case start != manifestStart && strings.HasPrefix(start, manifestMagic):
		return nil, fmt.Errorf("%w: %q", ErrVersion, start)
	case valid == 0:
		return nil, fmt.Errorf("%w: %s is not the manifest of a store", ErrDamaged, manifestName)
	}
	return m, nil
}

// writeManifest writes a manifest. A loss of power leaves the previous manifest or this one.
func writeManifest(d disk.Disk, m mark) error {
	if err := d.Remove(nextName); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("filequeue: %w", err)
	}
	f, err := d.Create(nextName)
	if err == nil {
		line := m.line(nil)
		if _, err = f.WriteAt(fmt.Appendf(nil, "%-*s\n%-*s\n%-*s\n", manifestPage-1, manifestStart, manifestPage-1, line, manifestPage-1, line), 0); err == nil {
			err = f.Sync()
		}
		f.Close()
	}
	if err == nil {
		err = d.Rename(nextName, manifestName)
	}
	if err == nil {
		err = d.SyncNames()
	}
	if err != nil { // the next call removes what is left
		return fmt.Errorf("filequeue: %w", err)
	}
	return nil
}

// open opens the file for set.
func (m *manifest) open(d disk.Disk) (err error) {
	if m.file, err = d.Open(manifestName); err != nil {
		return fmt.Errorf("filequeue: %w", err)
	}
	m.flushed = time.Now() // the first call of set syncs
	return nil
}

// set writes a mark about commits that are durable. If the process ends, the mark stays. To keep
// commits fast, set syncs only the first mark of each segment, and flush syncs now and then. So a loss
// of power may leave an earlier mark. An error does not matter, because marks only help to notice
// damage: the next call writes the page again.
func (m *manifest) set(at mark) {
	if m.mark = at; at == m.durable {
		return
	}
	m.buf = append(at.line(m.buf[:0]), "                "...) // the line before may have been longer
	_, err := m.file.WriteAt(m.buf, m.page*manifestPage)
	m.written = err == nil
	if at.segment != m.durable.segment {
		m.sync()
	}
}

// sync makes the page durable that was written. After an error the page must be written again, as the
// system may have dropped what it could not write.
func (m *manifest) sync() {
	if !m.written {
		return
	}
	m.written = false
	if m.file.Sync() == nil {
		m.durable, m.page = m.mark, 3-m.page
	}
}

// flush syncs the latest mark, but at most once a second. The writer calls it after a commit, when its
// callers do not wait any more. So a loss of power leaves the mark of a commit in the last second
// before the last commit, or a later one.
func (m *manifest) flush(now time.Time) {
	if now.Sub(m.flushed) >= time.Second {
		m.flushed = now
		m.sync()
	}
}

// close closes the file, if it is open.
func (m *manifest) close() {
	if m.file != nil {
		m.file.Close()
		m.file = nil
	}
}
