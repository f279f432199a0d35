package boltqueue

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

// openFile opens the database in the file path, and says which file that is.
func openFile(path string, timeout time.Duration) (*bolt.DB, os.FileInfo, error) {
	var looked os.FileInfo
	made := false
	switch info, err := os.Stat(path); {
	case errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0:
		made = true
	case err != nil:
		return nil, nil, fmt.Errorf("boltqueue: %w", err)
	default:
		if looked, err = inspect(path, timeout, false, nil); err != nil {
			return nil, nil, err
		}
	}
	var (
		db   *bolt.DB
		info os.FileInfo
	)
	err := protect(path, func() (err error) {
		db, _, info, err = lockFile(path, bolt.Options{
			Timeout:        timeout,
			FreelistType:   bolt.FreelistMapType,
			NoFreelistSync: true,
			NoSync:         !syncing,
		})
		return err
	})
	if err != nil {
		return nil, nil, openError(path, err)
	}
	if looked != nil && !os.SameFile(looked, info) {
		db.Close() // replaced meanwhile
		return openFile(path, timeout)
	}
	if made {
		if err := syncFolder(filepath.Dir(path)); err != nil {
			db.Close()
			return nil, nil, openError(path, err)
		}
	}
	return db, info, nil
}

// lockFile is bolt.Open, which waits for the lock of a file that may be replaced
// meanwhile, as Compact does: then it opens the one that is there now, until the
// timeout. It returns the file, which the database closes, as well.
func lockFile(path string, options bolt.Options) (*bolt.DB, *os.File, os.FileInfo, error) {
	open := options.OpenFile
	if open == nil {
		open = os.OpenFile
	}
	var f *os.File
	options.OpenFile = func(name string, flag int, mode os.FileMode) (_ *os.File, err error) {
		f, err = open(name, flag, mode)
		return f, err
	}
	for began := time.Now(); ; {
		db, err := bolt.Open(path, 0o600, &options)
		if err != nil {
			return nil, nil, nil, err
		}
		info, err := f.Stat()
		if err == nil {
			var now os.FileInfo
			if now, err = os.Stat(path); err == nil && os.SameFile(info, now) {
				return db, f, info, nil
			}
		}
		db.Close()
		if err == nil && time.Since(began) >= options.Timeout {
			err = berrors.ErrTimeout
		}
		if err != nil {
			return nil, nil, nil, err
		}
	}
}

// inspect looks at a file before it is opened for writing: bbolt takes it for
// granted that a file is whole, and goes down with the process where it is not. All
// is for a look at all of a large file, too. It returns which file it was: another may
// have taken its place when it is opened.
func inspect(path string, timeout time.Duration, all bool, p *reading) (os.FileInfo, error) {
	db, f, info, err := lockFile(path, bolt.Options{Timeout: timeout, ReadOnly: true})
	if err != nil {
		return nil, openError(path, err)
	}
	// The file cannot change while it is open.
	defer db.Close()
	if err := walk(f, all, p); err != nil {
		if p.err() != nil {
			return nil, p.err()
		}
		return nil, fmt.Errorf("%w: %s: %w", ErrDamaged, path, err)
	}
	return info, nil
}

// openError says what an error of bolt.Open means.
func openError(path string, err error) error {
	var (
		pathErr *fs.PathError
		errno   syscall.Errno
	)
	switch {
	case errors.Is(err, berrors.ErrTimeout):
		return fmt.Errorf("%w: %s", ErrLocked, path)
	case errors.Is(err, ErrDamaged):
		return err
	case errors.As(err, &pathErr), errors.As(err, &errno):
		return fmt.Errorf("boltqueue: opening %s: %w", path, err)
	}
	return fmt.Errorf("%w: %s: %w", ErrDamaged, path, err)
}

// syncing is false in tests alone. What they end is processes, and what they lose of a
// disk they model: they need not wait for one.
var syncing = true

// syncFolder makes a new file's name durable, on systems and file systems where
// folders can be synced.
func syncFolder(dir string) error {
	if runtime.GOOS == "windows" || !syncing {
		return nil
	}
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return folderError(f.Sync())
}

// folderError returns what a sync of a folder has failed by, nil if it is that
// folders are not synced there.
func folderError(err error) error {
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOTSUP) {
		return nil
	}
	return err
}

// protect calls fn, which reads or writes the database. bbolt panics on what it
// does not expect in a file, and reading a page that the disk does not yield is
// a fault; both become errors.
func protect(path string, fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %s: %v", ErrDamaged, path, r)
		}
	}()
	return fn()
}

// growError returns err with the cause that bbolt's error of a file which cannot grow
// has only as text.
func growError(err error) error {
	if err == nil {
		return nil
	}
	for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EFBIG, syscall.EDQUOT} {
		if strings.HasSuffix(err.Error(), ": "+errno.Error()) && !errors.Is(err, errno) {
			return caused{err, errno}
		}
	}
	return err
}

// caused is an error whose text says its cause.
type caused struct {
	error
	cause error
}

func (e caused) Unwrap() []error { return []error{e.error, e.cause} }

// lastTx returns the number of the transaction that the file shows.
func lastTx(db *bolt.DB) (id int, ok bool) {
	err := protect(db.Path(), func() error {
		return db.View(func(tx *bolt.Tx) error {
			id = tx.ID()
			return nil
		})
	})
	return id, err == nil
}
