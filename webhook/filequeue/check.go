package filequeue

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/hookferry/analytics/internal/disk"
	"github.com/hookferry/analytics/webhook/store"
)

// A Report counts the contents of a store's folder, and describes the parts that cannot be read.
type Report struct {
	// Waiting, Dead, Delivered and Documents count what could be read: waiting deliveries, dead
	// letters, deliveries of the history, and documents.
	Waiting, Dead, Delivered, Documents int
	// Bytes is the size of the records in all segments. Needed is how many of those bytes the store
	// still needs: those that Config.MaxBytes bounds, and those of the dedup window.
	Bytes, Needed int64
	// Missing describes each part that cannot be read, for people.
	Missing []string
	// InDoubt describes an unreadable part of the last commit, for people: after a crash, nothing
	// shows whether that commit was complete. It is empty if there is no such part.
	InDoubt string
}

// Check reads the whole store in a folder, which no process may have open, and writes nothing. It
// returns ErrDamaged if a part of the store is missing or unreadable. Its other errors are ErrLocked,
// ErrVersion, the error of ctx, and errors of the file system. Unless progress is nil, Check calls it
// now and then, and once at the end, with the numbers of bytes read and to read.
func Check(ctx context.Context, dir string, progress func(read, of int64)) (Report, error) {
	ld, err := inspect(ctx, dir, progress)
	if err != nil {
		return Report{}, err
	}
	defer closeFiles(ld.store)
	r := ld.reportOn(ld.store.index)
	if len(r.Missing) > 0 {
		err = fmt.Errorf("%w: %s: %s", ErrDamaged, dir, strings.Join(r.Missing, "; "))
	}
	return r, err
}

// inspect locks and loads the store in a folder, and goes on when something is missing. It writes
// nothing. The caller closes the files of the store.
func inspect(ctx context.Context, dir string, progress func(read, of int64)) (ld *loader, err error) {
	d := disk.Folder(dir)
	files, err := d.List()
	if err != nil {
		return nil, fmt.Errorf("filequeue: %w", err)
	}
	var read, of int64
	var lock io.Closer = io.NopCloser(nil) // without a lock file, no process has the store open
	for _, file := range files {
		if _, ok := parseName(file.Name); ok {
			of += file.Size
		}
	}
	m, unread := readManifest(d)
	if unread != nil && (!errors.Is(unread, ErrDamaged) || of == 0) {
		return nil, fmt.Errorf("%s: %w", dir, unread)
	}
	if slices.ContainsFunc(files, func(f disk.Info) bool { return f.Name == lockName }) {
		if lock, err = acquire(d, DefaultLockTimeout); err != nil {
			return nil, fmt.Errorf("%w: %s", err, dir)
		}
	}
	c, _ := Config{HistoryAge: store.Unlimited, HistoryBytes: store.Unlimited, DedupMax: 1 << 24}.withDefaults() // forgets nothing
	ld = newLoader(d, c, lock)
	ld.lenient, ld.ctx = true, ctx
	if progress != nil {
		ld.progress = func(n int64) {
			read += n
			progress(read, of)
		}
	}
	if unread != nil {
		ld.report("%v", unread)
	} else {
		ld.marked = m.mark
	}
	if err := ld.load(); err != nil {
		closeFiles(ld.store)
		return nil, err
	}
	ld.documents = ld.store.index.countDocuments(func(err error) { ld.report("%v; the documents there are missing", err) })
	for _, t := range ld.store.index.history.tables {
		t.sum.n = 0
		for _, err := range t.records(nil, func(err error) { ld.report("%v; the delivered deliveries there are missing", err) }) {
			if err != nil {
				closeFiles(ld.store)
				return nil, err
			}
			t.sum.n++
		}
	}
	ld.progress(of - read) // what could not be opened
	return ld, nil
}

// A patient is a file whose ReadAt goes on after an error of the disk. It returns zeros for each
// block of 4,096 bytes that the disk cannot read.
type patient struct{ disk.File }

func (p patient) ReadAt(b []byte, off int64) (n int, err error) {
	if n, err = p.File.ReadAt(b, off); err == nil || errors.Is(err, io.EOF) {
		return n, err
	}
	const block = 4096
	for n = 0; n < len(b); {
		some := b[n:min(n+block, len(b))]
		m, err := p.File.ReadAt(some, off+int64(n))
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
