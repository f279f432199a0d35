package filequeue

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/hookferry/analytics/internal/disk"
)

// A Report says what is in a folder.
type Report struct {
	// Waiting, Dead, Delivered and Settings count what can be read: deliveries that wait, dead
	// letters, the history, and settings.
	Waiting, Dead, Delivered, Settings int
	// Bytes is the size of the segments, Needed how much of it is needed.
	Bytes, Needed int64
	// Missing says what cannot be read, each in words.
	Missing []string
}

// Check reads all of the store in a folder, which no process may have open. It changes nothing. The
// error is an ErrDamaged if something is missing, ErrLocked, ErrVersion, or says why the files
// cannot be read.
func Check(dir string) (Report, error) { return CheckContext(context.Background(), dir, nil) }

// CheckContext is Check until ctx is done: then it returns the error of ctx. It calls progress,
// unless that is nil, now and then and at the end, with how many bytes are read of how many.
func CheckContext(ctx context.Context, dir string, progress func(read, of int64)) (Report, error) {
	ld, err := examine(ctx, dir, progress)
	if err != nil {
		return Report{}, err
	}
	defer ld.closeFiles()
	x := ld.index
	r := Report{Waiting: x.waiting, Dead: x.dead.len, Delivered: x.history.len, Settings: len(x.settings), Missing: ld.missing}
	r.Bytes, r.Needed = ld.index.segs.bytes()
	if len(r.Missing) > 0 {
		return r, fmt.Errorf("%w: %s: %s", ErrDamaged, dir, strings.Join(r.Missing, "; "))
	}
	return r, nil
}

// examine reads all of a folder, and notes what is missing. The caller closes its files.
func examine(ctx context.Context, dir string, progress func(read, of int64)) (_ *loader, err error) {
	files, err := disk.Folder(dir).List()
	if err != nil {
		return nil, fmt.Errorf("filequeue: %w", err)
	}
	var of, read int64
	for _, f := range files {
		if _, ok := segmentNumber(f.Name, ".log"); ok {
			of += f.Size
		}
	}
	c, _ := Config{Logger: slog.New(slog.DiscardHandler), DedupMax: 1 << 24}.withDefaults()
	d := disk.Folder(dir)
	merr := checkManifest(d, false)
	if errors.Is(merr, ErrVersion) || merr != nil && !errors.Is(merr, ErrDamaged) || merr != nil && of == 0 {
		return nil, fmt.Errorf("%s: %w", dir, merr)
	}
	lock, err := acquire(d, c.LockTimeout)
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, dir)
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
		ld.closeFiles()
		return nil, err
	}
	ld.compareHints(files)
	if progress != nil {
		progress(of, of)
	}
	return ld, nil
}

// compareHints reports the segments and the deliveries that hints have, and that nothing else says
// anything of.
func (ld *loader) compareHints(files []disk.Info) {
	for _, f := range files {
		n, ok := segmentNumber(f.Name, ".hint")
		b, err := readAll(ld.disk, f.Name, maxHint)
		if !ok || err != nil || len(b) < hintStart || ld.dropped[n] {
			continue
		}
		end := binary.LittleEndian.Uint64(b[16:])
		sums, err := decodeHint(b, binary.LittleEndian.Uint64(b[8:]), int64(end), nil)
		if err != nil {
			continue // it is made anew, and nothing is lost
		}
		if _, listed := ld.ends[n]; ld.index.segs[n] == nil && !listed {
			ld.report("%s, of %d bytes, is missing", segmentName(n), end)
		}
		missing := make(map[string]int)
		for _, s := range sums {
			if s.kind == kindPut && !ld.gone.has(s.seq) {
				missing[s.dest]++
			}
		}
		for _, dest := range slices.Sorted(maps.Keys(missing)) {
			ld.report("%s: deliveries to %q that are missing: %d", segmentName(n), dest, missing[dest])
		}
	}
}

// A patient reader takes what the disk does not yield for zeros, in blocks.
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

// missingFile reports whether there is nothing at a path.
func missingFile(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist)
}
