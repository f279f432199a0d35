package filequeue

import (
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

	"github.com/hookferry/analytics/audience"
	"github.com/hookferry/analytics/internal/disk"
)

// rosterName is the file of the bbolt database with the audiences. The database is a B-tree,
// because members are read in the order of their ids, and may need more space than the memory has.
// The first call that needs the file creates it.
//
// Each audience has a bucket. Its key "record" has the audience.Record. Its bucket "members" maps
// each user id to the latest generation that had this user.
const rosterName = "roster.db"

var (
	rowRecord     = []byte("record")
	bucketMembers = []byte("members")
)

// A roster implements audience.Roster.
type roster struct {
	store    *Store
	dir      string
	unsynced bool // set by tests: bbolt does not sync its file

	mu      sync.Mutex // guards the fields below
	db      *bolt.DB   // nil until it is needed
	damaged error      // why the database cannot be opened
}

func (r *roster) open() (_ *bolt.DB, err error) {
	if r.dir == "" {
		return nil, fmt.Errorf("audiences on this disk: %w", errors.ErrUnsupported)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.damaged != nil { // bbolt still has the file locked, so another Open would wait in vain
		return nil, r.damaged
	}
	defer func() {
		if errors.Is(err, ErrDamaged) {
			r.damaged = err
		}
	}()
	defer recovered(&err)()
	if r.db == nil {
		r.db, err = bolt.Open(filepath.Join(r.dir, rosterName), 0o600, &bolt.Options{
			Timeout: time.Second, FreelistType: bolt.FreelistMapType, NoSync: r.unsynced, OpenFile: openFile,
		})
	}
	return r.db, err
}

// openFile is disk.OpenFile for bbolt.
func openFile(name string, flag int, _ os.FileMode) (*os.File, error) {
	return disk.OpenFile(name, flag)
}

// close closes the database. The caller has waited until all calls ended.
func (r *roster) close() error {
	if r.db == nil {
		return nil
	}
	if err := r.db.Close(); err != nil {
		return fmt.Errorf("filequeue: %s: %w", rosterName, err)
	}
	return nil
}

// run runs f as a transaction of a call. The argument run begins the transaction: it is
// (*bolt.DB).View or (*bolt.DB).Update.
func (r *roster) run(ctx context.Context, run func(*bolt.DB, func(*bolt.Tx) error) error, f func(tx *bolt.Tx) error) (err error) {
	if err := r.store.gate.Enter(ctx); err != nil {
		return err
	}
	defer r.store.gate.Leave()
	defer recovered(&err)()
	db, err := r.open()
	if err == nil {
		err = run(db, f)
	}
	if err != nil {
		return fmt.Errorf("filequeue: %s: %w", rosterName, err)
	}
	return nil
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

// recovered turns panics of bbolt into errors, until the caller defers its result. bbolt panics on
// unexpected bytes in its file. A page of the mapped file that the disk cannot read causes a fault.
// This works only for the goroutine of the caller. So the callers use neither Tx.Check nor
// Options.NoFreelistSync, with which bbolt reads the file in a goroutine of its own.
func recovered(err *error) (deferred func()) {
	before := debug.SetPanicOnFault(true)
	return func() {
		debug.SetPanicOnFault(before)
		if p := recover(); p != nil {
			*err = fmt.Errorf("%w: %s: %v", ErrDamaged, rosterName, p)
		}
	}
}

// copyRoster copies the audiences to another folder, if there are any and all of them can be read.
func copyRoster(from, to string) (err error) {
	path, copied := filepath.Join(from, rosterName), filepath.Join(to, rosterName)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(copied))
		}
	}()
	defer recovered(&err)()
	source, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: time.Second, ReadOnly: true, OpenFile: openFile})
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := bolt.Open(copied, 0o600, nil)
	if err != nil {
		return err
	}
	defer target.Close() // all of it is synced
	return bolt.Compact(target, source, 1<<20)
}
