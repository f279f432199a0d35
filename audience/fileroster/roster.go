// Package fileroster provides an audience.Roster that keeps audiences in one file of a folder of the
// local disk, for any number of members. What it has stored survives a crash of the process or the
// machine. The folder may be that of a filequeue.
//
//	r, err := fileroster.Open("data")
//	announcer := audience.New(forwarder, r)
//
// The file is a bbolt database, a B-tree, because members are read in the order of their ids, and may
// need more space than the memory has. Each audience has a bucket. Its key "record" has the
// audience.Record. Its bucket "members" maps each user id to the latest generation that had this user.
package fileroster

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/hookferry/analytics/audience"
	"github.com/hookferry/analytics/internal/disk"
	"github.com/hookferry/analytics/webhook/store"
)

const fileName = "roster.db"
const page = 256 // members or audiences that a list reads at a time

var (
	// ErrDamaged is returned by calls that find the file damaged or unreadable.
	ErrDamaged = errors.New("the file of the audiences is damaged")
	// ErrLocked is returned by calls while another process, or another Roster, has the file open.
	ErrLocked = errors.New("the file of the audiences is in use")

	rowRecord     = []byte("record")
	bucketMembers = []byte("members")
)

// A Roster is an audience.Roster. The first call that needs its file opens it, or creates it.
type Roster struct {
	dir      string
	unsynced bool // set by tests: bbolt does not sync its file
	gate     store.Gate

	mu      sync.Mutex // guards the fields below
	db      *bolt.DB   // nil until it is needed
	damaged bool       // the database cannot be opened
}

// Open returns the Roster in a folder. It creates a missing folder, and leaves the file to the
// first call that needs it. It refuses the same folders as filequeue.Open because of their owners
// and modes.
func Open(dir string) (*Roster, error) {
	if err := disk.MakeFolder(dir); err != nil {
		return nil, fmt.Errorf("fileroster: %w", err)
	}
	return &Roster{dir: dir}, nil
}

// Close waits until all calls have ended, and closes the file.
func (r *Roster) Close() error {
	if !r.gate.Close() || r.db == nil {
		return nil
	}
	return r.db.Close()
}

func (r *Roster) open() (_ *bolt.DB, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.damaged {
		return nil, ErrDamaged
	}
	if r.db == nil {
		r.damaged = true // stays so if bbolt panics: it then keeps the file locked, and could not open it again
		r.db, err = open(r.dir, bolt.Options{NoSync: r.unsynced})
		r.damaged = false
	}
	return r.db, err
}

// open opens the database in a folder. It waits up to a second for another process.
func open(dir string, o bolt.Options) (*bolt.DB, error) {
	o.Timeout, o.FreelistType = time.Second, bolt.FreelistMapType
	o.OpenFile = func(name string, flag int, _ os.FileMode) (*os.File, error) { return disk.OpenFile(name, flag) }
	db, err := bolt.Open(filepath.Join(dir, fileName), 0o600, &o)
	if errors.Is(err, bolterrors.ErrTimeout) {
		err = ErrLocked
	}
	return db, err
}

// run runs f as a transaction of a call. The argument run begins the transaction: it is
// (*bolt.DB).View or (*bolt.DB).Update.
func (r *Roster) run(ctx context.Context, run func(*bolt.DB, func(*bolt.Tx) error) error, f func(tx *bolt.Tx) error) (err error) {
	if err := r.gate.Enter(ctx); err != nil {
		return err
	}
	defer r.gate.Leave()
	defer guarded(&err)()
	db, err := r.open()
	if err != nil {
		return err
	}
	return run(db, f)
}

// guarded adds the name of the file to an error, and turns panics of bbolt into errors, while the
// caller runs; use it as defer guarded(&err)(). bbolt panics on unexpected bytes in its file. A
// page of the mapped file that the disk cannot read causes a fault. This works only for the
// goroutine of the caller. So the callers use neither Tx.Check nor Options.NoFreelistSync, with
// which bbolt reads the file in a goroutine of its own.
func guarded(err *error) (deferred func()) {
	before := debug.SetPanicOnFault(true)
	return func() {
		debug.SetPanicOnFault(before)
		if p := recover(); p != nil {
			*err = fmt.Errorf("%w: %v", ErrDamaged, p)
		}
		if *err != nil {
			*err = fmt.Errorf("fileroster: %s: %w", fileName, *err)
		}
	}
}

// UpdateAudience implements audience.Roster. It calls f with an audience's record and members in one
// transaction, and stores the record if f changes it.
func (r *Roster) UpdateAudience(ctx context.Context, id string, f func(*audience.Record, audience.Members) error) error {
	return r.run(ctx, (*bolt.DB).Update, func(tx *bolt.Tx) error {
		a, err := tx.CreateBucketIfNotExists([]byte(id))
		if err != nil {
			return err
		}
		members, err := a.CreateBucketIfNotExists(bucketMembers)
		var rec audience.Record
		before := a.Get(rowRecord)
		if err == nil && before != nil {
			err = rec.UnmarshalBinary(before)
		}
		if err == nil {
			err = f(&rec, rows{members})
		}
		if err != nil {
			return err
		}
		after, err := rec.AppendBinary(nil)
		if err != nil || bytes.Equal(after, before) {
			return err
		}
		return a.Put(rowRecord, after)
	})
}

// Members implements audience.Roster.
func (r *Roster) Members(ctx context.Context, id string) iter.Seq2[string, error] {
	return store.Pages("", func(after string) (users []string, last string, err error) {
		err = r.run(ctx, (*bolt.DB).View, func(tx *bolt.Tx) error {
			if a := tx.Bucket([]byte(id)); a != nil {
				next, _ := rows{a.Bucket(bucketMembers)}.Next(after, page)
				for _, m := range next {
					users, last = append(users, m.User), m.User
				}
			}
			return nil
		})
		return users, last, err
	})
}

// Audiences implements audience.Roster.
func (r *Roster) Audiences(ctx context.Context) iter.Seq2[audience.Entry, error] {
	return store.Pages("", func(after string) (all []audience.Entry, last string, err error) {
		err = r.run(ctx, (*bolt.DB).View, func(tx *bolt.Tx) error {
			for id := range following(tx.Cursor(), after) {
				if len(all) == page {
					break
				}
				var rec audience.Record
				if err := rec.UnmarshalBinary(tx.Bucket(id).Get(rowRecord)); err != nil {
					return err
				}
				last = string(id)
				all = append(all, audience.Entry{ID: last, Name: rec.Name, Generation: rec.Generation})
			}
			return nil
		})
		return all, last, err
	})
}

// rows is the bucket of an audience's members. It implements audience.Members.
type rows struct{ bucket *bolt.Bucket }

// Get implements audience.Members.
func (b rows) Get(users []string) ([]audience.Member, error) {
	found := make([]audience.Member, len(users))
	for i, user := range users {
		found[i].User = user
		if row := b.bucket.Get([]byte(user)); row != nil {
			found[i].Generation = binary.BigEndian.Uint64(row)
		}
	}
	return found, nil
}

// Next implements audience.Members.
func (b rows) Next(after string, max int) (next []audience.Member, _ error) {
	for user, row := range following(b.bucket.Cursor(), after) {
		if len(next) == max {
			break
		}
		next = append(next, audience.Member{User: string(user), Generation: binary.BigEndian.Uint64(row)})
	}
	return next, nil
}

// Set implements audience.Members.
func (b rows) Set(users []string, generation uint64) (err error) {
	row := binary.BigEndian.AppendUint64(nil, generation)
	for _, user := range users {
		if generation == 0 {
			err = b.bucket.Delete([]byte(user))
		} else {
			err = b.bucket.Put([]byte(user), row)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// following yields the rows behind the key after.
func following(c *bolt.Cursor, after string) iter.Seq2[[]byte, []byte] {
	return func(yield func(k, v []byte) bool) {
		k, v := c.Seek([]byte(after))
		if k != nil && string(k) == after {
			k, v = c.Next()
		}
		for k != nil && yield(k, v) {
			k, v = c.Next()
		}
	}
}

// Copy copies the audiences in one folder to another folder, which must have none. No process may
// have the file of the audiences open. If there is no file, Copy does nothing. If the file cannot
// be read completely, Copy returns an error and leaves no copy.
func Copy(from, to string) (err error) {
	if _, err := os.Stat(filepath.Join(from, fileName)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(filepath.Join(to, fileName)))
		}
	}()
	defer guarded(&err)()
	source, err := open(from, bolt.Options{ReadOnly: true})
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := open(to, bolt.Options{})
	if err != nil {
		return err
	}
	defer target.Close() // all of it is synced
	return bolt.Compact(target, source, 1<<20)
}
