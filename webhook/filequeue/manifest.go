package filequeue

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"slices"
	"strings"

	"github.com/hookferry/analytics/internal/disk"
)

// The beginning of the file MANIFEST, which names the format of the folder. After a Close, a line
// about the end of the log follows; see mark.
const (
	manifestMagic = "hookferry store "
	manifestStart = manifestMagic + "5\n"
)

// A mark says in which segment the log ended at the last Close, and at which offset of it. So Open
// notices if the latest segment is missing or too short. The zero mark stands for no Close. Open
// ignores a mark at the offset 0, which earlier versions wrote: that segment may be removed.
type mark struct {
	segmentID
	end int64
}

// manifest returns the content of the file MANIFEST.
func (m mark) manifest() string {
	if m == (mark{}) {
		return manifestStart
	}
	line := fmt.Sprintf("%s %d", m.name(), m.end)
	return fmt.Sprintf("%s%s %08x\n", manifestStart, line, crc32.Checksum([]byte(line), castagnoli))
}

var errEmpty = fmt.Errorf("%w: it is empty", ErrDamaged)

// readManifest reads the manifest of a folder. It returns errEmpty if the folder has no file of a
// store.
func readManifest(d disk.Disk) (m mark, err error) {
	f, err := d.Open(manifestName)
	var b []byte
	if err == nil {
		defer f.Close()
		b, err = io.ReadAll(io.NewSectionReader(f, 0, 1024))
	} else if errors.Is(err, fs.ErrNotExist) {
		var files []disk.Info
		if files, err = d.List(); err == nil {
			if slices.ContainsFunc(files, func(f disk.Info) bool { return f.Name != lockName && f.Name != nextName }) {
				return m, fmt.Errorf("%w: it has files, but no %s", ErrDamaged, manifestName)
			}
			return m, errEmpty
		}
	}
	text := string(b)
	fmt.Sscanf(text, manifestStart+"segment-%d-%x.log %d", &m.number, &m.salt, &m.end)
	switch {
	case err != nil:
		return mark{}, fmt.Errorf("filequeue: %w", err)
	case text == m.manifest():
		return m, nil
	case strings.HasPrefix(text, manifestMagic) && !strings.HasPrefix(text, manifestStart):
		return mark{}, fmt.Errorf("%w: %q", ErrVersion, strings.TrimSpace(text))
	}
	return mark{}, fmt.Errorf("%w: %s is not the manifest of a store", ErrDamaged, manifestName)
}

// writeManifest writes a manifest. A loss of power leaves the previous manifest or this one.
func writeManifest(d disk.Disk, m mark) error {
	if err := d.Remove(nextName); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("filequeue: %w", err)
	}
	f, err := d.Create(nextName)
	if err == nil {
		if _, err = f.WriteAt([]byte(m.manifest()), 0); err == nil {
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
