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

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/storekit"
)

// rosterName is the database of the audiences: members in the order of their ids, more of them than
// memory has room for, are what a B-tree is for. It is made when it is first needed.
//
// There is a bucket for each audience, with its generation in the key "generation" and a bucket
// "members": by id, the generation in which each was last seen.
const rosterName = "roster.db"

var (
	rowGeneration = []byte("generation")
	bucketMembers = []byte("members")
)

// A roster implements webhook.Roster and webhook.Rosters. What announces members is put before they
// are stored, so that a crash repeats an announcement rather than losing one.
type roster struct {
	store    *Store
	dir      string
	unsynced bool          // in tests
	changing chan struct{} // holds a value while a Join or a Leave looks, puts and stores

	mu sync.Mutex // guards db
	db *bolt.DB   // nil until it is needed
}

func newRoster(s *Store, dir string) *roster {
	return &roster{store: s, dir: dir, changing: make(chan struct{}, 1)}
}

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

// close is called when all calls have ended.
func (r *roster) close() error {
	if r.db == nil {
		return nil
	}
	if err := r.db.Close(); err != nil {
		return fmt.Errorf("filequeue: %s: %w", rosterName, err)
	}
	return nil
}

// view and update run a transaction of a call. bbolt panics on what it does not expect in a file,
// and reading a page that the disk does not yield is a fault; both become errors.
func (r *roster) view(ctx context.Context, f func(tx *bolt.Tx) error) error {
	return r.run(ctx, (*bolt.DB).View, f)
}

func (r *roster) update(ctx context.Context, f func(tx *bolt.Tx) error) error {
	return r.run(ctx, (*bolt.DB).Update, f)
}

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

// lock begins a change, and returns what ends it.
func (r *roster) lock(ctx context.Context) (unlock func(), err error) {
	select {
	case r.changing <- struct{}{}:
		return func() { <-r.changing }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func checkAudience(name string) error {
	if n := len(name); n < 1 || n > 1024 {
		return fmt.Errorf("filequeue: audience name of %d bytes, not 1 to 1024", n)
	}
	return nil
}

// generation reads a generation; what is not there is 0.
func generation(v []byte) uint64 {
	if len(v) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(v)
}

// members returns the bucket of an audience's members, nil if it is not known.
func members(tx *bolt.Tx, audience string) *bolt.Bucket {
	if a := tx.Bucket([]byte(audience)); a != nil {
		return a.Bucket(bucketMembers)
	}
	return nil
}

func makeAudience(tx *bolt.Tx, audience string) (a, members *bolt.Bucket, err error) {
	if a, err = tx.CreateBucketIfNotExists([]byte(audience)); err == nil {
		members, err = a.CreateBucketIfNotExists(bucketMembers)
	}
	return a, members, err
}

// announced returns the puts that announce a user. Their ids are new, so they do not take the place
// of others in the dedup window.
func announced(user string, announce func(string) ([]webhook.Delivery, error)) ([]put, error) {
	ds, err := announce(user)
	if err != nil {
		return nil, err
	}
	ps := make([]webhook.Put, len(ds))
	for i := range ds {
		ps[i].Delivery = ds[i]
	}
	puts, _, err := newPuts(ps, time.Now().UnixMicro())
	for i := range puts {
		puts[i].known = true
	}
	return puts, err
}

// put stores what announces members.
func (r *roster) put(ctx context.Context, puts []put) error {
	if len(puts) == 0 {
		return nil
	}
	if err := r.store.enter(ctx); err != nil {
		return err
	}
	defer r.store.calls.Done()
	var size int64
	for i := range puts {
		size += recordSize(len(puts[i].payload))
	}
	err := r.store.writer.do(ctx, &putOp{puts: puts, maxBytes: r.store.config.MaxBytes, tell: true}, size, true)
	r.store.notify()
	return err
}

// Begin implements webhook.Roster.
func (r *roster) Begin(ctx context.Context, audience string) (begun uint64, err error) {
	if err := checkAudience(audience); err != nil {
		return 0, err
	}
	err = r.run(ctx, (*bolt.DB).Batch, func(tx *bolt.Tx) error {
		a, _, err := makeAudience(tx, audience)
		if err != nil {
			return err
		}
		begun = generation(a.Get(rowGeneration)) + 1
		return a.Put(rowGeneration, binary.BigEndian.AppendUint64(nil, begun))
	})
	return begun, err
}

// Join implements webhook.Roster.
func (r *roster) Join(ctx context.Context, audience string, gen uint64, users []string, announce func(string) ([]webhook.Delivery, error)) (int, error) {
	if err := checkAudience(audience); err != nil {
		return 0, err
	}
	for _, user := range users {
		if n := len(user); n < 1 || n > 255 {
			return 0, fmt.Errorf("filequeue: member of %d bytes, not 1 to 255", n)
		}
	}
	users = slices.Compact(slices.Sorted(slices.Values(users))) // so that each page is visited once
	notices := make(map[string][]put)
	for {
		// Who is new is announced without a lock, and found again if others left meanwhile.
		joined, unannounced, err := r.join(ctx, audience, gen, users, notices)
		if err != nil || len(unannounced) == 0 {
			return joined, err
		}
		for _, user := range unannounced {
			if notices[user], err = announced(user, announce); err != nil {
				return 0, err
			}
		}
	}
}

// join makes members of users, unless there are some that join without a notice, which it returns.
func (r *roster) join(ctx context.Context, audience string, gen uint64, users []string, notices map[string][]put) (joined int, unannounced []string, err error) {
	unlock, err := r.lock(ctx)
	if err != nil {
		return 0, nil, err
	}
	defer unlock()
	var puts []put
	err = r.view(ctx, func(tx *bolt.Tx) error {
		b := members(tx, audience)
		for _, user := range users {
			if b != nil && b.Get([]byte(user)) != nil {
				continue
			}
			joined++
			notice, ok := notices[user]
			if !ok {
				unannounced = append(unannounced, user)
			}
			puts = append(puts, notice...)
		}
		return nil
	})
	if err != nil || len(unannounced) > 0 || len(users) == 0 {
		return 0, unannounced, err
	}
	if err := r.put(ctx, puts); err != nil {
		return 0, nil, err
	}
	value := binary.BigEndian.AppendUint64(nil, gen)
	err = r.update(ctx, func(tx *bolt.Tx) error {
		_, b, err := makeAudience(tx, audience)
		for _, user := range users {
			if err != nil {
				return err
			}
			if was := b.Get([]byte(user)); was == nil || generation(was) < gen {
				err = b.Put([]byte(user), value)
			}
		}
		return err
	})
	if err != nil {
		return 0, nil, err
	}
	return joined, nil, nil
}

// Leave implements webhook.Roster.
func (r *roster) Leave(ctx context.Context, audience string, gen uint64, after string, limit int, announce func(string) ([]webhook.Delivery, error)) (last string, left int, err error) {
	var leaving []string
	err = r.view(ctx, func(tx *bolt.Tx) error {
		b := members(tx, audience)
		if b == nil {
			return nil
		}
		c, n := b.Cursor(), 0
		for k, v := c.Seek([]byte(after)); k != nil; k, v = c.Next() {
			if string(k) == after {
				continue
			}
			if n == max(limit, 1) {
				return nil
			}
			n++
			if last = string(k); generation(v) < gen {
				leaving = append(leaving, last)
			}
		}
		last = ""
		return nil
	})
	notices := make([][]put, len(leaving))
	for i := 0; i < len(leaving) && err == nil; i++ {
		notices[i], err = announced(leaving[i], announce)
	}
	if err == nil && len(leaving) > 0 {
		left, err = r.leave(ctx, audience, gen, leaving, notices)
	}
	if err != nil {
		return "", 0, err
	}
	return last, left, nil
}

// leave removes users, unless they were seen again meanwhile.
func (r *roster) leave(ctx context.Context, audience string, gen uint64, users []string, notices [][]put) (left int, err error) {
	unlock, err := r.lock(ctx)
	if err != nil {
		return 0, err
	}
	defer unlock()
	var puts []put
	var gone []string
	err = r.view(ctx, func(tx *bolt.Tx) error {
		b := members(tx, audience)
		for i, user := range users {
			if v := b.Get([]byte(user)); v != nil && generation(v) < gen {
				puts, gone = append(puts, notices[i]...), append(gone, user)
			}
		}
		return nil
	})
	if err == nil {
		err = r.put(ctx, puts)
	}
	if err != nil {
		return 0, err
	}
	return len(gone), r.update(ctx, func(tx *bolt.Tx) error {
		b := members(tx, audience)
		for _, user := range gone {
			if err := b.Delete([]byte(user)); err != nil {
				return err
			}
		}
		return nil
	})
}

// Members implements webhook.Roster.
func (r *roster) Members(ctx context.Context, audience, after string) iter.Seq2[string, error] {
	from := []byte(after)
	if after != "" {
		from = append(from, 0) // just after it
	}
	return storekit.Pages(from, func(from []byte) (users []string, next []byte, err error) {
		err = r.view(ctx, func(tx *bolt.Tx) error {
			b := members(tx, audience)
			if b == nil {
				return nil
			}
			c := b.Cursor()
			for k, _ := c.Seek(from); k != nil; k, _ = c.Next() {
				if len(users) == page {
					next = bytes.Clone(k)
					return nil
				}
				users = append(users, string(k))
			}
			return nil
		})
		return users, next, err
	})
}

// Audiences implements webhook.Rosters.
func (r *roster) Audiences(ctx context.Context) iter.Seq2[webhook.RosterAudience, error] {
	return storekit.Pages([]byte(nil), func(from []byte) (all []webhook.RosterAudience, next []byte, err error) {
		err = r.view(ctx, func(tx *bolt.Tx) error {
			c, n := tx.Cursor(), 0
			for k, _ := c.Seek(from); k != nil; k, _ = c.Next() {
				if n == page {
					next = bytes.Clone(k)
					return nil
				}
				n++
				if g := generation(tx.Bucket(k).Get(rowGeneration)); g > 0 {
					all = append(all, webhook.RosterAudience{Name: string(k), Generation: g})
				}
			}
			return nil
		})
		return all, next, err
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
