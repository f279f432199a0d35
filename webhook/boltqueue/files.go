package boltqueue

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	bolt "go.etcd.io/bbolt"
)

// A Report says what is in a store's files.
type Report struct {
	// Waiting counts the deliveries that are neither done nor buried, Dead the
	// dead letters.
	Waiting, Dead int
	// Bytes is the size of the data file, Free how much of it Compact would
	// give back at least, and Journal the size of the journal, 0 if there is none.
	Bytes, Free, Journal int64
}

// Check reads all of the store in the file path, which no process may have open,
// and its journal. It changes nothing. The error is an ErrDamaged that wraps each
// finding, ErrLocked, ErrVersion, or says why the files cannot be read.
func Check(path string) (Report, error) { return CheckContext(context.Background(), path, nil) }

// CheckContext is Check until ctx is done: then it returns the error of ctx. It
// calls progress, unless that is nil, now and then and at the end, with how many
// bytes are read of at most how many: all are read twice.
func CheckContext(ctx context.Context, path string, progress func(read, of int64)) (Report, error) {
	var r Report
	info, err := os.Stat(path)
	if err != nil {
		return r, fmt.Errorf("boltqueue: %w", err)
	}
	r.Bytes = info.Size()
	p := newReading(ctx, progress, 2*r.Bytes)
	for _, journal := range journalPaths(path) {
		if info, err := os.Stat(journal); err == nil {
			r.Journal += info.Size()
		}
	}
	looked, err := inspect(path, DefaultLockTimeout, true, p)
	if err != nil {
		return r, err
	}
	db, _, info, err := lockFile(path, bolt.Options{Timeout: DefaultLockTimeout, ReadOnly: true, PreLoadFreelist: true})
	if err != nil {
		return r, openError(path, err)
	}
	defer db.Close()
	if !os.SameFile(looked, info) {
		return r, fmt.Errorf("%w: %s was replaced meanwhile", ErrLocked, path)
	}
	var found []error
	err = protect(path, func() error {
		return db.View(func(tx *bolt.Tx) error {
			if err := checkFormat(tx); err != nil {
				return err
			}
			r.Free = int64(db.Stats().FreePageN) * int64(db.Info().PageSize)
			var base counts
			if err := base.read(tx.Bucket(bucketMeta).Get(rowState)); err != nil {
				return err
			}
			found = append(found, checkRows(tx, base, p)...)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			c, err := readChainOf(tx, path)
			if err == nil {
				err = c.check(tx)
			}
			if err != nil {
				found = append(found, err)
			}
			for _, p := range c.players {
				base.add(p.changed)
			}
			r.Waiting, r.Dead = int(base.waiting), int(base.dead)
			return nil
		})
	})
	switch {
	case ctx.Err() != nil:
		return r, ctx.Err()
	case errors.Is(err, ErrVersion):
		return r, fmt.Errorf("%s: %w", path, err)
	case err != nil:
		found = append(found, err)
	}
	if len(found) > 0 {
		return r, fmt.Errorf("%w: %s: %w", ErrDamaged, path, errors.Join(found...))
	}
	p.end()
	return r, nil
}

// lockedByOther reports whether a process has the file open as a store.
func lockedByOther(path string) bool {
	locked := false
	protect(path, func() error {
		db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: 10 * time.Millisecond, ReadOnly: true})
		if err == nil {
			return db.Close()
		}
		locked = errors.Is(openError(path, err), ErrLocked)
		return nil
	})
	return locked
}
