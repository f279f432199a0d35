package filequeue

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// Rescue copies the readable part of the store in the folder from, which no process may have open, to
// a new store in the folder to, which must not exist. It does not change the old store. The Report
// counts the contents of the new store. Its Missing describes the unreadable parts of the old one. If
// ctx ends, Rescue removes the new store. It calls progress as Check does, while it reads the old
// store.
func Rescue(ctx context.Context, from, to string, progress func(read, of int64)) (r Report, err error) {
	if _, err := os.Lstat(to); !errors.Is(err, fs.ErrNotExist) {
		return r, fmt.Errorf("filequeue: %s exists", to)
	}
	ld, err := inspect(ctx, from, progress)
	if err != nil {
		return r, err
	}
	defer closeFiles(ld.store)
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(to))
		}
	}()
	s, err := Open(to, ld.store.config)
	if err != nil {
		return r, err
	}
	err = ld.copyTo(s)
	s.index.mu.Lock()
	r = ld.reportOn(s.index)
	s.index.mu.Unlock()
	return r, errors.Join(err, s.Close())
}
