package boltqueue

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	bolt "go.etcd.io/bbolt"
)

// Compact writes the store in the file path, which no process may have open,
// anew, without the space that is free in it. It needs room for the new file
// beside the old one, which it replaces once the new one is on the disk. It
// returns the sizes of both. An Open that waits meanwhile opens the new file.
func Compact(path string) (before, after int64, err error) {
	return CompactContext(context.Background(), path, nil)
}

// CompactContext is Compact until ctx is done: then it returns the error of ctx,
// and the old file stays. It calls progress, unless that is nil, now and then
// and at the end, with how many bytes are written of about how many.
func CompactContext(ctx context.Context, path string, progress func(written, of int64)) (before, after int64, err error) {
	// What a symbolic link leads to is replaced, and the link stays.
	target, err := filepath.EvalSymlinks(path)
	if err != nil {
		return 0, 0, fmt.Errorf("boltqueue: %w", err)
	}
	// The journal goes into the file.
	q, err := Open(path, nil)
	if err != nil {
		return 0, 0, err
	}
	if err := q.Close(); err != nil {
		return 0, 0, err
	}
	src, info, err := openFile(path, DefaultLockTimeout)
	if err != nil {
		return 0, 0, err
	}
	defer src.Close()
	// While the file is locked, a journal is nobody's who has just opened the store.
	for _, journal := range journalPaths(path) {
		if _, err := os.Stat(journal); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		return 0, 0, fmt.Errorf("boltqueue: the journal of %s cannot go into the file; is the disk full?", path)
	}
	before = info.Size()
	compacted := target + ".compact"
	defer os.Remove(compacted)
	os.Remove(compacted) // of one that did not end
	// Without NoGrowSync the file would grow by steps of 16 MB, and end with what
	// is left of the last.
	dst, err := bolt.Open(compacted, 0o600, &bolt.Options{NoSync: true, NoGrowSync: true, FreelistType: bolt.FreelistMapType})
	if err == nil {
		err = protect(path, func() error { return copyAll(ctx, dst, src, progress) })
		if err == nil {
			err = dst.Sync()
		}
		if cerr := dst.Close(); err == nil {
			err = cerr
		}
	}
	if err == nil {
		info, err = os.Stat(compacted)
	}
	if err == nil {
		if runtime.GOOS == "windows" {
			err = src.Close() // it replaces no file that is open
		}
	}
	if err == nil {
		err = os.Rename(compacted, target)
	}
	if err != nil {
		return before, before, fmt.Errorf("boltqueue: compacting %s: %w", path, err)
	}
	if err := syncFolder(filepath.Dir(target)); err != nil {
		return before, info.Size(), fmt.Errorf("boltqueue: %s was compacted, but may not survive a loss of power: %w", path, err)
	}
	return before, info.Size(), nil
}

const (
	// copyBytes is how much is copied by one transaction.
	copyBytes = 4 << 20
	// copyFill is how full pages are made. Settlements change what is in them
	// little, and puts come behind them.
	copyFill = 0.9
)

// copyAll copies src into dst, which is empty. Keys come in their order, so
// that each page is written once.
func copyAll(ctx context.Context, dst, src *bolt.DB, progress func(written, of int64)) error {
	if progress == nil {
		progress = func(int64, int64) {}
	}
	return src.View(func(from *bolt.Tx) error {
		c := &copier{ctx: ctx, db: dst, progress: progress}
		c.total = from.Size() - int64(src.Stats().FreePageN)*int64(src.Info().PageSize)
		if err := ctx.Err(); err != nil {
			return err
		}
		var err error
		if c.tx, err = dst.Begin(true); err != nil {
			return err
		}
		defer func() { c.tx.Rollback() }() // of none that is committed
		err = from.ForEach(func(name []byte, b *bolt.Bucket) error { return c.bucket([][]byte{name}, b) })
		if err == nil {
			err = c.tx.Commit()
		}
		if err == nil {
			progress(c.total, c.total)
		}
		return err
	})
}

// A copier copies buckets by transactions of a bounded size.
type copier struct {
	ctx      context.Context
	db       *bolt.DB
	tx       *bolt.Tx
	size     int64 // of what tx has
	written  int64 // by those before
	total    int64
	progress func(written, of int64)
}

// bucket copies the bucket at a path, with those in it.
func (c *copier) bucket(path [][]byte, from *bolt.Bucket) error {
	to, err := c.open(path)
	if err != nil {
		return err
	}
	if err := to.SetSequence(from.Sequence()); err != nil {
		return err
	}
	return from.ForEach(func(k, v []byte) error {
		if v == nil {
			return c.bucket(append(slices.Clip(path), k), from.Bucket(k))
		}
		return c.put(path, k, v)
	})
}

// open returns the bucket at a path, which it makes if it is missing.
func (c *copier) open(path [][]byte) (b *bolt.Bucket, err error) {
	if b, err = c.tx.CreateBucketIfNotExists(path[0]); err != nil {
		return nil, err
	}
	for _, name := range path[1:] {
		if b, err = b.CreateBucketIfNotExists(name); err != nil {
			return nil, err
		}
	}
	b.FillPercent = copyFill
	return b, nil
}

func (c *copier) put(path [][]byte, k, v []byte) error {
	if c.size > copyBytes {
		if err := c.next(); err != nil {
			return err
		}
	}
	c.size += int64(len(k) + len(v))
	b, err := c.open(path)
	if err != nil {
		return err
	}
	return b.Put(k, v)
}

// next begins another transaction.
func (c *copier) next() error {
	if err := c.ctx.Err(); err != nil {
		return err
	}
	if err := c.tx.Commit(); err != nil {
		return err
	}
	c.written += c.size
	c.size = 0
	c.progress(min(c.written, c.total), c.total)
	tx, err := c.db.Begin(true)
	if err == nil {
		c.tx = tx
	}
	return err
}
