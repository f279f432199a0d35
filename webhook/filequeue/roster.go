package filequeue

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/hookferry/analytics/audience"
	"github.com/hookferry/analytics/webhook/storekit"
)

// rosterName is the bbolt database of the audiences. It is a B-tree because members are read in the
// order of their ids, and may be more than fit into memory. It is made when it is first needed.
//
// There is a bucket for each audience, with an audience.Record in the key "record" and a bucket
// "members": by user id, the generation that has seen each last.
const rosterName = "roster.db"

var (
	rowRecord     = []byte("record")
	bucketMembers = []byte("members")
)

// A roster implements audience.Roster.
type roster struct {
	store    *Store
	dir      string
	unsynced bool // in tests

	mu sync.Mutex // guards db
	db *bolt.DB   // nil until it is needed
}

func newRoster(s *Store, dir string) *roster { return &roster{store: s, dir: dir} }

func (r *roster) open() (*bolt.DB, error) {
	if r.dir == "" {
		return nil, fmt.Errorf("audiences on this disk: %w", errors.ErrUnsupported)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.db == nil {
		db, err := bolt.Open(filepath.Join(r.dir, rosterName), 0o600, &bolt.Options{Timeout: time.Second, FreelistType: bolt.FreelistMapType, NoFreelistSync: true, NoSync: r.unsynced})
		if err != nil {
			return nil, err
		}
		r.db = db
	}
	return r.db, nil
}

// close closes the database. The caller has waited for all calls.
func (r *roster) close() error {
	if r.db == nil {
		return nil
	}
	if err := r.db.Close(); err != nil {
		return fmt.Errorf("filequeue: %s: %w", rosterName, err)
	}
	return nil
}

// run runs a transaction of a call. bbolt panics on what it does not expect in a file,
// and reading a page that the disk does not yield is a fault; both become errors.
func (r *roster) run(ctx context.Context, run func(*bolt.DB, func(*bolt.Tx) error) error, f func(tx *bolt.Tx) error) (err error) {
	if err := r.store.enter(ctx); err != nil {
		return err
	}
	defer r.store.calls.Done()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %s: %v", ErrDamaged, rosterName, p)
		}
	}()
	db, err := r.open()
	if err == nil {
		err = run(db, f)
	}
	if err != nil {
		return fmt.Errorf("filequeue: %s: %w", rosterName, err)
	}
	return nil
}

// change runs f on an audience in a transaction, and stores what f changes. Without begin, the
// audience must be there.
func (r *roster) change(ctx context.Context, id string, begin bool, f func(rec *audience.Record, members *bolt.Bucket) error) error {
	return r.run(ctx, (*bolt.DB).Update, func(tx *bolt.Tx) (err error) {
		a := tx.Bucket([]byte(id))
		var rec audience.Record
		switch {
		case a != nil:
			if err := rec.UnmarshalBinary(a.Get(rowRecord)); err != nil {
				return err
			}
		case !begin:
			return audience.ErrSuperseded
		default:
			if a, err = tx.CreateBucket([]byte(id)); err == nil {
				_, err = a.CreateBucket(bucketMembers)
			}
			if err != nil {
				return err
			}
		}
		if err := f(&rec, a.Bucket(bucketMembers)); err != nil {
			return err
		}
		b, err := rec.AppendBinary(nil)
		if err != nil || bytes.Equal(b, a.Get(rowRecord)) {
			return err
		}
		return a.Put(rowRecord, b)
	})
}

// Begin implements audience.Roster.
func (r *roster) Begin(ctx context.Context, id, name string) (generation uint64, inFlight audience.Chunk, err error) {
	if err := audience.CheckID(id, name); err != nil {
		return 0, inFlight, err
	}
	err = r.change(ctx, id, true, func(rec *audience.Record, _ *bolt.Bucket) error {
		if rec.Generation == 0 {
			rec.Name = name
		}
		rec.Generation++
		generation, inFlight = rec.Generation, rec.InFlight
		return nil
	})
	return generation, inFlight, err
}

// Join implements audience.Roster.
func (r *roster) Join(ctx context.Context, id string, generation uint64, users []string) (c audience.Chunk, err error) {
	if err := audience.CheckUsers(users); err != nil {
		return c, err
	}
	users = slices.Compact(slices.Sorted(slices.Values(users))) // so that each page is visited once
	seen := binary.BigEndian.AppendUint64(nil, generation)
	err = r.change(ctx, id, false, func(rec *audience.Record, members *bolt.Bucket) error {
		if err := rec.Idle(generation); err != nil {
			return err
		}
		var joining []string
		for _, user := range users {
			switch was := members.Get([]byte(user)); {
			case was == nil:
				joining = append(joining, user)
			case !bytes.Equal(was, seen):
				if err := members.Put([]byte(user), seen); err != nil {
					return err
				}
			}
		}
		rec.InFlight = audience.NewChunk(generation, false, joining)
		c = rec.InFlight
		return nil
	})
	return c, err
}

// Leave implements audience.Roster.
func (r *roster) Leave(ctx context.Context, id string, generation uint64, after string, max int) (c audience.Chunk, last string, err error) {
	seen := binary.BigEndian.AppendUint64(nil, generation)
	err = r.change(ctx, id, false, func(rec *audience.Record, members *bolt.Bucket) error {
		if err := rec.Idle(generation); err != nil {
			return err
		}
		var leaving []string
		n := 0
		cursor := members.Cursor()
		k, v := cursor.Seek([]byte(after))
		if after != "" && string(k) == after {
			k, v = cursor.Next()
		}
		for ; k != nil && n < max; k, v = cursor.Next() {
			n++
			if last = string(k); !bytes.Equal(v, seen) {
				leaving = append(leaving, last)
			}
		}
		if k == nil {
			last = ""
		}
		rec.InFlight = audience.NewChunk(generation, true, leaving)
		c = rec.InFlight
		return nil
	})
	return c, last, err
}

// Confirm implements audience.Roster.
func (r *roster) Confirm(ctx context.Context, id string, generation uint64, n int) error {
	return r.change(ctx, id, false, func(rec *audience.Record, members *bolt.Bucket) error {
		if err := rec.Owned(generation); err != nil {
			return err
		}
		c := rec.InFlight
		seen := binary.BigEndian.AppendUint64(nil, c.Generation)
		for _, user := range c.Users[:min(n, len(c.Users))] {
			var err error
			if c.Left {
				err = members.Delete([]byte(user))
			} else {
				err = members.Put([]byte(user), seen)
			}
			if err != nil {
				return err
			}
		}
		rec.InFlight = c.Rest(n)
		return nil
	})
}

// pages yields the rows of a bucket after the row named after, converted by read, page by page.
func pages[T any](ctx context.Context, r *roster, after string, bucket func(*bolt.Tx) *bolt.Cursor, read func(tx *bolt.Tx, k []byte) (T, error)) iter.Seq2[T, error] {
	from := []byte(after)
	if after != "" {
		from = append(from, 0) // just after it
	}
	return storekit.Pages(from, func(from []byte) (all []T, next []byte, err error) {
		err = r.run(ctx, (*bolt.DB).View, func(tx *bolt.Tx) error {
			cursor := bucket(tx)
			if cursor == nil {
				return nil
			}
			for k, _ := cursor.Seek(from); k != nil; k, _ = cursor.Next() {
				if len(all) == page {
					next = bytes.Clone(k)
					return nil
				}
				v, err := read(tx, k)
				if err != nil {
					return err
				}
				all = append(all, v)
			}
			return nil
		})
		return all, next, err
	})
}

// Members implements audience.Roster.
func (r *roster) Members(ctx context.Context, id, after string) iter.Seq2[string, error] {
	return pages(ctx, r, after, func(tx *bolt.Tx) *bolt.Cursor {
		if a := tx.Bucket([]byte(id)); a != nil {
			return a.Bucket(bucketMembers).Cursor()
		}
		return nil
	}, func(_ *bolt.Tx, k []byte) (string, error) { return string(k), nil })
}

// Audiences implements audience.Roster.
func (r *roster) Audiences(ctx context.Context) iter.Seq2[audience.Entry, error] {
	return pages(ctx, r, "", (*bolt.Tx).Cursor, func(tx *bolt.Tx, k []byte) (audience.Entry, error) {
		var rec audience.Record
		err := rec.UnmarshalBinary(tx.Bucket(k).Get(rowRecord))
		return audience.Entry{ID: string(k), Name: rec.Name, Generation: rec.Generation}, err
	})
}

// checkRoster reads all of a database of audiences.
func checkRoster(path string) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %s: %v", ErrDamaged, rosterName, p)
		}
	}()
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: time.Second})
	if err != nil {
		return err
	}
	defer db.Close()
	return db.View(func(tx *bolt.Tx) error {
		for err := range tx.Check() {
			return err
		}
		return nil
	})
}
