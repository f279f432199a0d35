package boltqueue

import (
	"bytes"
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
		if looked, err = inspect(path, timeout, false); err != nil {
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
func inspect(path string, timeout time.Duration, all bool) (os.FileInfo, error) {
	db, f, info, err := lockFile(path, bolt.Options{Timeout: timeout, ReadOnly: true})
	if err != nil {
		return nil, openError(path, err)
	}
	// The file cannot change while it is open.
	defer db.Close()
	if err := walk(f, all); err != nil {
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

// syncFolder makes a new file's name durable, on systems and file systems where
// folders can be synced.
func syncFolder(dir string) error {
	if runtime.GOOS == "windows" {
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
	for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EFBIG} {
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

// A fileID is a file as it was when it was opened.
type fileID struct {
	path string
	info os.FileInfo
}

// start reads an opened file, which it makes a store if it is new.
func (q *Queue) start(db *bolt.DB, info os.FileInfo) error {
	return protect(q.path, func() (err error) {
		if err := growError(db.Update(q.initialise)); err != nil {
			return q.startError(err)
		}
		if err := q.load(db); err != nil {
			return q.startError(err)
		}
		journal, err := q.journal.file.Stat()
		if err != nil {
			return q.startError(err)
		}
		q.files = []fileID{{q.path, info}, {q.journal.path, journal}}
		q.file = db
		return nil
	})
}

func (q *Queue) startError(err error) error {
	if errors.Is(err, ErrVersion) {
		return err
	}
	if errors.Is(err, errRow) {
		return fmt.Errorf("%w: %s: %w", ErrDamaged, q.path, err)
	}
	return fmt.Errorf("boltqueue: opening %s: %w", q.path, err)
}

// initialise makes the buckets of a new store, checks the version of an old
// one, brings it up to date with its journal, and leaves the queue's mark.
func (q *Queue) initialise(tx *bolt.Tx) error {
	meta := tx.Bucket(bucketMeta)
	if meta == nil {
		if k, _ := tx.Cursor().First(); k != nil {
			return fmt.Errorf("%w: it is another program's database", errRow)
		}
		for _, name := range allBuckets {
			if _, err := tx.CreateBucket(name); err != nil {
				return err
			}
		}
		meta = tx.Bucket(bucketMeta)
		if err := meta.Put(rowVersion, []byte{formatVersion}); err != nil {
			return err
		}
		if err := meta.Put(rowState, counts{}.row()); err != nil {
			return err
		}
	}
	if err := checkFormat(tx); err != nil {
		return fmt.Errorf("%s: %w", q.path, err)
	}
	e, err := replay(tx, journalPath(q.path), q.config.CacheBytes, time.Now())
	if err != nil {
		return err
	}
	// The journal is on the disk before the database asks for it.
	if q.journal, err = makeJournal(journalPath(q.path), e); err != nil {
		return err
	}
	next := e.next()
	if err := q.journal.prepare(next); err != nil {
		return fmt.Errorf("journal %s: %w", q.journal.path, err)
	}
	q.journal.rewind(next)
	if err := meta.Put(rowJournal, q.journal.epoch[:]); err != nil {
		return err
	}
	return meta.Put(rowSession, q.session)
}

// checkFormat returns an error if the database is not one of this package, or
// of a later version of it.
func checkFormat(tx *bolt.Tx) error {
	meta := tx.Bucket(bucketMeta)
	if meta == nil {
		return fmt.Errorf("%w: no bucket %q", errRow, bucketMeta)
	}
	if v := meta.Get(rowVersion); len(v) != 1 || v[0] != formatVersion {
		return fmt.Errorf("%w: %d, this program knows %d", ErrVersion, v, formatVersion)
	}
	for _, name := range allBuckets {
		if tx.Bucket(name) == nil {
			return fmt.Errorf("%w: no bucket %q", errRow, name)
		}
	}
	return nil
}

// recover opens the database again if it had to be closed, and finds out whether
// it holds the edit in doubt.
func (q *Queue) recover() error {
	q.mu.Lock()
	db, failure := q.file, q.failure
	q.mu.Unlock()
	if db != nil {
		return nil
	}
	db, info, err := openFile(q.path, q.config.LockTimeout)
	if err != nil {
		return fmt.Errorf("%w (after %w)", err, failure)
	}
	if !os.SameFile(info, q.files[0].info) {
		db.Close()
		return fmt.Errorf("%w: %s (after %w)", ErrLost, q.path, failure)
	}
	e, id, landed := q.doubt, 0, false
	err = protect(q.path, func() error {
		tx, err := db.Begin(true)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		// The epoch tells, whatever was written since: this transaction may
		// fail as the one before. Another process may have had the file.
		meta := tx.Bucket(bucketMeta)
		if meta == nil || !bytes.Equal(meta.Get(rowSession), q.session) {
			return errors.New("another process has used it")
		}
		landed = bytes.Equal(meta.Get(rowJournal), e.epoch[:])
		if err := meta.Put(rowSession, q.session); err != nil {
			return err
		}
		id = tx.ID()
		// If this is durable, what it follows is, too.
		return growError(q.commit1(tx))
	})
	if err != nil {
		db.Close()
		return fmt.Errorf("boltqueue: opening %s again: %w (after %w)", q.path, err, failure)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if landed {
		e.apply(id)
	} else {
		e.undo()
		q.applied = id
	}
	q.doubt, q.file, q.failure = nil, db, nil
	q.landed.Broadcast()
	q.config.Logger.Info("boltqueue: data file is open again", "file", q.path)
	return nil
}

// rest leaves one file, such that the next Open is quick.
func (q *Queue) rest() {
	if q.file == nil {
		return
	}
	if err := q.checkpoint(); err != nil {
		return // the log was told, and the journal is there for the next Open
	}
	q.file.NoFreelistSync = false
	err := protect(q.path, func() error {
		return q.file.Update(func(tx *bolt.Tx) error {
			return tx.Bucket(bucketMeta).Put(rowJournal, append(q.journal.epoch[:], closedMark))
		})
	})
	if err != nil {
		q.config.Logger.Warn("boltqueue: data file was not closed in order; the next Open reads the journal", "file", q.path, "error", err)
		return
	}
	q.journal.close()
	os.Remove(q.journal.path)
}
