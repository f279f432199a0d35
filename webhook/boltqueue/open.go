package boltqueue

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"syscall"

	bolt "go.etcd.io/bbolt"
)

// A fileID is a file as it was when it was opened.
type fileID struct {
	path string
	info os.FileInfo
}

// start reads an opened file, which it makes a store if it is new. For what is in one it
// takes no room: where there is none, what can be stored is found out by who wants to
// store it.
func (q *Queue) start(db *bolt.DB, info os.FileInfo) error {
	return protect(q.path, func() error {
		if err := growError(q.initialise(db)); err != nil {
			return q.startError(err)
		}
		c, err := q.readState(db)
		if err != nil {
			return q.startError(err)
		}
		// All is read before anything is written: what is damaged is left as it is.
		if err := q.load(db, c); err != nil {
			return q.startError(err)
		}
		q.files = []fileID{{q.path, info}}
		if err := q.openJournals(c); err != nil {
			return q.startError(err)
		}
		if err := q.leaveStamp(db); err != nil {
			return q.startError(err)
		}
		q.file = db
		return db.View(func(tx *bolt.Tx) error {
			q.applied, q.used = tx.ID(), used(db, tx)
			return nil
		})
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

// initialise makes the buckets of a new store.
func (q *Queue) initialise(db *bolt.DB) error {
	known := false
	err := db.View(func(tx *bolt.Tx) error {
		if known = tx.Bucket(bucketMeta) != nil; known {
			return nil
		}
		if k, _ := tx.Cursor().First(); k != nil {
			return fmt.Errorf("%w: it is another program's database", errRow)
		}
		return nil
	})
	if known || err != nil {
		return err
	}
	return db.Update(func(tx *bolt.Tx) error {
		for _, name := range allBuckets {
			if _, err := tx.CreateBucket(name); err != nil {
				return err
			}
		}
		meta := tx.Bucket(bucketMeta)
		if err := meta.Put(rowVersion, []byte{formatVersion}); err != nil {
			return err
		}
		return meta.Put(rowState, counts{}.row())
	})
}

// readState checks the version of a store, and reads what it counts and its journal.
func (q *Queue) readState(db *bolt.DB) (c chain, err error) {
	err = db.View(func(tx *bolt.Tx) error {
		if err := checkFormat(tx); err != nil {
			return fmt.Errorf("%s: %w", q.path, err)
		}
		meta := tx.Bucket(bucketMeta)
		if err := q.base.read(meta.Get(rowState)); err != nil {
			return err
		}
		q.count = q.base
		q.stamp = bytes.Clone(meta.Get(rowSession))
		c, err = readChainOf(tx, q.path)
		return err
	})
	return c, err
}

// openJournals opens the files of the journal. The one with the last epoch of the chain
// is written on; a store that was closed begins an epoch.
func (q *Queue) openJournals(c chain) error {
	for i, j := range q.journals {
		j.epoch = c.last
		if err := j.open(); err != nil && (!noRoom(err) || len(c.players) > 0 && i == c.file) {
			return fmt.Errorf("journal %s: %w", j.path, err)
		}
	}
	q.journal = q.journals[c.file]
	if len(c.players) == 0 {
		if err := q.journal.prepare(c.last.next()); err != nil && !noRoom(err) {
			return fmt.Errorf("journal %s: %w", q.journal.path, err)
		}
	} else {
		q.begun = true
		q.journal.number, q.journal.off = c.number, c.off
		q.journal.ready = c.number == 1
	}
	for _, j := range q.journals {
		// Each was in use if there are two epochs.
		if j != q.journal && len(c.players) < 2 {
			continue
		}
		q.watch(j)
		if j.file == nil {
			continue
		}
		// A process that was killed may have left what it did not sync, and what was
		// found there counts from here on: who stores it again is told that it is
		// stored, and what follows the end of an epoch is in the other file.
		if err := j.sync(); err != nil {
			return fmt.Errorf("journal %s: %w", j.path, err)
		}
	}
	if other := q.other(); len(c.players) < 2 {
		// What has no room now has it made later.
		err := other.open()
		if err == nil {
			err = other.grow(entriesStart)
		}
		if err != nil && !noRoom(err) {
			return fmt.Errorf("journal %s: %w", other.path, err)
		}
	}
	return nil
}

// leaveStamp has the database show who has it open, and name the first epoch of the
// journal if it names none. What there is no room for is left to the first transaction.
func (q *Queue) leaveStamp(db *bolt.DB) error {
	before, _ := lastTx(db)
	left := stamp(q.session, 0)
	begins := !q.begun && q.journal.ready
	err := growError(db.Update(func(tx *bolt.Tx) error {
		meta := tx.Bucket(bucketMeta)
		if begins {
			if err := meta.Put(rowJournal, q.journal.epoch[:]); err != nil {
				return err
			}
		}
		return meta.Put(rowSession, left)
	}))
	if err == nil {
		q.stamp, q.begun = left, q.begun || begins
		return nil
	}
	if after, ok := lastTx(db); noRoom(err) && ok && after == before {
		q.config.Logger.Warn("boltqueue: there is no room to store anything", "file", q.path, "error", err)
		return nil
	}
	return err
}

// noRoom reports whether an error is that of a full disk.
func noRoom(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EFBIG) || errors.Is(err, syscall.EDQUOT)
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
		// The stamp tells, whatever was written since: this transaction may
		// fail as the one before. Another process may have had the file.
		meta := tx.Bucket(bucketMeta)
		if meta == nil {
			return errAnother
		}
		found := bytes.Clone(meta.Get(rowSession))
		landed = bytes.Equal(found, e.stamp)
		if !landed && !bytes.Equal(found, q.stamp) {
			return errAnother
		}
		if err := meta.Put(rowSession, found); err != nil {
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
	if landed {
		e.db = db
		e.land(id)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if !landed {
		e.undo()
		q.applied = id
	}
	q.doubt, q.file, q.failure = nil, db, nil
	q.landed.Broadcast()
	q.config.Logger.Info("boltqueue: data file is open again", "file", q.path)
	return nil
}

var errAnother = errors.New("another process has used it")

// rest leaves one file, such that the next Open is quick.
func (q *Queue) rest() {
	if q.file == nil {
		return
	}
	err := q.checkpoint()
	if err == nil {
		q.file.NoFreelistSync = false
		err = protect(q.path, func() error {
			return q.file.Update(func(tx *bolt.Tx) error {
				return tx.Bucket(bucketMeta).Put(rowJournal, append(q.journal.epoch[:], closedMark))
			})
		})
	}
	if err != nil { // as on a full disk
		q.config.Logger.Warn("boltqueue: data file was not closed in order; nothing is lost: keep its journals beside it, and the next Open reads them",
			"file", q.path, "error", err)
		return
	}
	q.closeJournals()
	for _, j := range q.journals {
		os.Remove(j.path)
	}
}
