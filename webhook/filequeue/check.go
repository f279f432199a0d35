package filequeue

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"

	"github.com/hookferry/analytics/internal/disk"
)

// A Report counts the contents of a store's folder, and describes the parts that cannot be read.
type Report struct {
	// Waiting, Dead, Delivered and Settings count what could be read: waiting deliveries, dead
	// letters, deliveries of the history, and settings.
	Waiting, Dead, Delivered, Settings int
	// Bytes is the size of the records in all segments. Needed is how many of those bytes the store
	// still needs.
	Bytes, Needed int64
	// Missing describes each part that cannot be read, for people.
	Missing []string
}

// counts returns a Report about what was loaded.
func (ld *loader) counts() Report {
	ld.index.mu.Lock()
	defer ld.index.mu.Unlock()
	x := ld.index
	r := Report{Waiting: x.waiting(), Dead: x.dead.len, Delivered: x.history.len, Settings: len(x.settings), Missing: ld.missing}
	r.Bytes, r.Needed = x.segs.bytes()
	return r
}

// Check reads the whole store in a folder. No process may have the store open. Check
// writes nothing. It returns ErrDamaged if a part of the store is missing or unreadable. Its other
// errors are ErrLocked, ErrVersion, the error of ctx, and errors of the file system. Check
// calls progress now and then, and once at the end, with the number of bytes read and the number of
// bytes to read. progress may be nil.
func Check(ctx context.Context, dir string, progress func(read, of int64)) (Report, error) {
	f, err := openSource(ctx, dir, progress)
	if err != nil {
		return Report{}, err
	}
	ld := f.loader(newStore(f.Disk, f.config, f.lock))
	defer closeFiles(ld.Store)
	ld.progress = f.progress
	if err := ld.load(); err != nil {
		return Report{}, err
	}
	f.progress(f.bytes - f.read)
	r := ld.counts()
	if len(r.Missing) > 0 {
		err = fmt.Errorf("%w: %s: %s", ErrDamaged, dir, strings.Join(r.Missing, "; "))
	}
	return r, err
}

// A source is the folder of a store that Check or Rescue reads. The folder is locked.
type source struct {
	disk.Disk
	ctx         context.Context
	config      Config
	lock        io.Closer
	segments    []disk.Info
	closed      mark
	manifest    error // why the manifest cannot be read
	read, bytes int64 // of the segments
	tell        func(read, of int64)
}

// openSource finds the store in a folder, and locks it.
func openSource(ctx context.Context, dir string, tell func(read, of int64)) (f *source, err error) {
	f = &source{Disk: disk.Folder(dir), ctx: ctx, tell: tell, lock: io.NopCloser(nil)} // without a lock file, no process has the store open
	f.config, _ = Config{Logger: slog.New(slog.DiscardHandler), HistoryAge: Unlimited, HistoryBytes: Unlimited, DedupMax: 1 << 24}.withDefaults()
	files, err := f.List()
	if err != nil {
		return nil, fmt.Errorf("filequeue: %w", err)
	}
	for _, file := range files {
		if _, ok := parseName(file.Name); ok {
			f.segments = append(f.segments, file)
			f.bytes += file.Size
		}
	}
	f.closed, f.manifest = readManifest(f, false)
	if err := f.manifest; err != nil && (!errors.Is(err, ErrDamaged) || f.bytes == 0) {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	if slices.ContainsFunc(files, func(f disk.Info) bool { return f.Name == lockName }) {
		if f.lock, err = acquire(f, f.config.LockTimeout); err != nil {
			return nil, fmt.Errorf("%w: %s", err, dir)
		}
	}
	return f, nil
}

// loader returns a loader for s that goes on when something is missing.
func (f *source) loader(s *Store) *loader {
	ld := newLoader(s)
	ld.lenient, ld.ctx, ld.closed = true, f.ctx, f.closed
	if f.manifest != nil {
		ld.report("%v", f.manifest)
	}
	return ld
}

// progress reports that n more bytes were read.
func (f *source) progress(n int64) {
	if f.read += n; f.tell != nil {
		f.tell(f.read, f.bytes)
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
