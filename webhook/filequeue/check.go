package filequeue

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/hookferry/analytics/internal/disk"
)

// A Report counts the contents of a store's folder, and describes the parts that cannot be read.
type Report struct {
	// Waiting, Dead, Delivered and Settings count what could be read: waiting deliveries, dead
	// letters, deliveries of the history, and settings.
	Waiting, Dead, Delivered, Settings int
	// Bytes is the size of all segment files. Needed is how many of those bytes the store still
	// needs.
	Bytes, Needed int64
	// Missing describes each part that cannot be read, for people.
	Missing []string
}

// reportOf counts the contents of a store in a new Report, and sets its field Missing to missing.
func reportOf(s *Store, missing []string) Report {
	s.index.mu.Lock()
	defer s.index.mu.Unlock()
	x := s.index
	r := Report{Waiting: x.waiting(), Dead: x.dead.len, Delivered: x.history.len, Settings: len(x.settings), Missing: missing}
	r.Bytes, r.Needed = x.segs.bytes()
	return r
}

// Check reads the whole store in a folder. No process may have the store open. Check
// writes nothing. It returns ErrDamaged if a part of the store is missing or unreadable. Its other
// errors are ErrLocked, ErrVersion, the error of ctx, and errors of the file system. Check
// calls progress now and then, and once at the end, with the number of bytes read and the number of
// bytes to read. progress may be nil.
func Check(ctx context.Context, dir string, progress func(read, of int64)) (Report, error) {
	ld, err := examine(ctx, dir, progress)
	if err != nil {
		return Report{}, err
	}
	defer closeFiles(ld.Store)
	r := reportOf(ld.Store, ld.missing)
	if len(r.Missing) > 0 {
		err = fmt.Errorf("%w: %s: %s", ErrDamaged, dir, strings.Join(r.Missing, "; "))
	}
	return r, err
}

// examine loads the whole store in a folder. It goes on after parts that cannot be read, and
// describes them in loader.missing. The caller closes the store's files.
func examine(ctx context.Context, dir string, progress func(read, of int64)) (_ *loader, err error) {
	d := disk.Folder(dir)
	files, err := d.List()
	if err != nil {
		return nil, fmt.Errorf("filequeue: %w", err)
	}
	var of, read int64
	var lock io.Closer = io.NopCloser(nil) // without a lock file, no process has the store open
	for _, f := range files {
		if _, hint, ok := parseName(f.Name); ok && !hint {
			of += f.Size
		}
	}
	merr := checkManifest(d, false)
	if errors.Is(merr, ErrVersion) || merr != nil && !errors.Is(merr, ErrDamaged) || merr != nil && of == 0 {
		return nil, fmt.Errorf("%s: %w", dir, merr)
	}
	c, _ := Config{Logger: slog.New(slog.DiscardHandler), DedupMax: 1 << 24}.withDefaults()
	if slices.ContainsFunc(files, func(f disk.Info) bool { return f.Name == lockName }) {
		if lock, err = acquire(d, c.LockTimeout); err != nil {
			return nil, fmt.Errorf("%w: %s", err, dir)
		}
	}
	ld := newLoader(newStore(d, c, lock))
	ld.lenient, ld.ctx = true, ctx
	ld.progress = func(n int64) {
		if read += n; progress != nil {
			progress(min(read, of), of)
		}
	}
	if merr != nil {
		ld.report("%v", merr)
	}
	if err := ld.load(); err != nil {
		closeFiles(ld.Store)
		return nil, err
	}
	ld.compareHints(files)
	if progress != nil {
		progress(of, of)
	}
	return ld, nil
}

// compareHints reports the segments and deliveries that are listed in a hint file but missing.
func (ld *loader) compareHints(files []disk.Info) {
	for _, f := range files {
		id, hint, _ := parseName(f.Name)
		b, err := readAll(ld.disk, f.Name, maxHint)
		if !hint || err != nil || len(b) < hintStart || ld.leftover(id.number) {
			continue
		}
		end := binary.LittleEndian.Uint64(b[8:])
		rs, err := decodeHint(b, id.salt, int64(end), nil)
		if err != nil {
			continue // Open reads the segment instead of a malformed hint file, so nothing is lost
		}
		if _, reported := ld.needed[id.number]; ld.index.segs[id.number] == nil && !reported {
			ld.report("%s, of %d bytes, is missing with all deliveries in it", id.name(), end)
		}
		missing := make(map[string]int)
		for _, r := range rs {
			if r.kind == kindPut && !r.damaged && !ld.gone.has(r.seq) {
				missing[string(r.payload)]++
			}
		}
		for _, destination := range slices.Sorted(maps.Keys(missing)) {
			ld.report("%s: deliveries to %q that are missing: %d", id.name(), destination, missing[destination])
		}
	}
}

// A patient is an io.ReaderAt that goes on after an error of the disk. It returns zeros for each
// block of 4,096 bytes that the disk cannot read.
type patient struct{ io.ReaderAt }

func (p patient) ReadAt(b []byte, off int64) (n int, err error) {
	if n, err = p.ReaderAt.ReadAt(b, off); err == nil || errors.Is(err, io.EOF) {
		return n, err
	}
	const block = 4096
	for n = 0; n < len(b); {
		some := b[n:min(n+block, len(b))]
		m, err := p.ReaderAt.ReadAt(some, off+int64(n))
		if errors.Is(err, io.EOF) {
			return n + m, err
		}
		if err != nil {
			clear(some)
		}
		n += len(some)
	}
	return n, nil
}
