package filequeue

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/hookferry/analytics/internal/disk"
)

// Rescue copies the readable part of one store to a new store. The argument from is the
// folder of the old store. The argument to is the folder of the new store, and must not exist. No
// process may have the old store open. Rescue does not change the old store. The Report
// counts the contents of the new store. Its Missing describes the unreadable parts of the old one.
// If ctx ends, Rescue removes the new store. It calls progress as Check does.
//
// Rescue first copies the segments. Then it opens the copy, and retires each damaged segment: this
// copies the records that can be read to a new segment.
func Rescue(ctx context.Context, from, to string, progress func(read, of int64)) (r Report, err error) {
	if _, err := os.Lstat(to); !errors.Is(err, fs.ErrNotExist) {
		return r, fmt.Errorf("filequeue: %s exists", to)
	}
	f, err := openSource(ctx, from, progress)
	if err != nil {
		return r, err
	}
	defer f.lock.Close()
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(to))
		}
	}()
	if err := makeFolder(to); err != nil {
		return r, fmt.Errorf("filequeue: %w", err)
	}
	d := disk.Folder(to)
	for _, s := range f.segments {
		if err := f.copy(d, s); err != nil {
			return r, err
		}
	}
	if err := writeManifest(d, mark{}); err != nil {
		return r, fmt.Errorf("filequeue: %w", err)
	}
	lock, err := acquire(d, f.config.LockTimeout)
	if err != nil {
		return r, err
	}
	ld := f.loader(newStore(d, f.config, lock))
	if rerr := copyRoster(from, to); rerr != nil {
		ld.report("the audiences cannot be read, and are missing: %v", rerr)
	}
	if err := ld.start(to); err != nil {
		return r, err
	}
	err = ld.beginSegment(ctx)
	if err == nil {
		err = ld.retireDamaged()
	}
	close(ld.janitor.ended) // it does not run
	r = ld.counts()
	f.progress(f.bytes - f.read)
	return r, errors.Join(err, ld.Close())
}

// copy copies a file to another folder. If the file cannot be opened, the copy is missing.
func (f *source) copy(to disk.Disk, file disk.Info) error {
	old, err := f.Open(file.Name)
	if err != nil {
		return nil // the loader reports that the copy is missing
	}
	defer old.Close()
	copied, err := to.Create(file.Name)
	if err != nil {
		return fmt.Errorf("filequeue: %w", err)
	}
	defer copied.Close()
	b := make([]byte, 1<<20)
	for off := int64(0); off < file.Size; off += int64(len(b)) {
		if err := f.ctx.Err(); err != nil {
			return err
		}
		n, err := patient{old}.ReadAt(b, off)
		if err == nil || errors.Is(err, io.EOF) {
			_, err = copied.WriteAt(b[:n], off)
		}
		if err != nil {
			return fmt.Errorf("filequeue: %w", err)
		}
		f.progress(int64(n))
	}
	return copied.Sync()
}

// beginSegment begins a new segment. The loader has sealed all copies, and Open expects that the
// latest segment is not sealed.
func (ld *loader) beginSegment(ctx context.Context) error {
	return ld.writer.do(ctx, func(g *group) error {
		r := g.segs.record(0)
		g.add(&r)
		return nil
	}, recordHeader, false)
}

// retireDamaged retires all segments that could not be read completely.
func (ld *loader) retireDamaged() error {
	j := ld.janitor
	j.busy <- struct{}{}
	for _, n := range ld.index.segs.numbers() {
		if g := ld.index.segs[n]; g.damaged {
			if err := j.retire(g); err != nil {
				return fmt.Errorf("filequeue: %s: %w", g.name(), err)
			}
		}
	}
	return nil
}

// copyRoster copies the database of the audiences, if there is one. It returns an error if the copy
// cannot be read.
func copyRoster(from, to string) (err error) {
	b, err := os.ReadFile(filepath.Join(from, rosterName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	copied := filepath.Join(to, rosterName)
	if err := os.WriteFile(copied, b, 0o600); err != nil {
		return err
	}
	if err := checkRoster(copied); err != nil {
		return errors.Join(err, os.Remove(copied))
	}
	return nil
}
