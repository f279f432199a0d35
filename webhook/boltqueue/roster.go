package boltqueue

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"slices"

	bolt "go.etcd.io/bbolt"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/storekit"
)

// members returns the bucket of an audience's members, nil if it is not known.
func members(tx *bolt.Tx, audience string) *bolt.Bucket {
	a := tx.Bucket(bucketAudiences).Bucket([]byte(audience))
	if a == nil {
		return nil
	}
	return a.Bucket(bucketMembers)
}

// makeAudience returns the bucket of an audience, which it makes if need be.
func (e *edit) makeAudience(audience string) (*bolt.Bucket, error) {
	a, err := e.bucket(bucketAudiences).CreateBucketIfNotExists([]byte(audience))
	if err == nil {
		_, err = a.CreateBucketIfNotExists(bucketMembers)
	}
	return a, err
}

func checkAudience(name string) error {
	if n := len(name); n < 1 || n > 1024 {
		return fmt.Errorf("boltqueue: audience name of %d bytes, not 1 to 1024", n)
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

// Begin implements webhook.Roster.
func (q *Queue) Begin(ctx context.Context, audience string) (uint64, error) {
	if err := q.enter(ctx); err != nil {
		return 0, err
	}
	defer q.calls.Done()
	if err := checkAudience(audience); err != nil {
		return 0, err
	}
	var begun uint64
	err := q.do(ctx, &request{work: func(e *edit, _ *request) error {
		a, err := e.makeAudience(audience)
		if err != nil {
			return err
		}
		begun = generation(a.Get(rowGeneration)) + 1
		return a.Put(rowGeneration, numberKey(begun))
	}})
	if err != nil {
		return 0, err
	}
	return begun, nil
}

// A notice is what is put to announce that a user joins or leaves.
type notice struct {
	user string
	puts []put
}

// announced returns the notice of a user. The ids in it are new: they would
// only take the place of others in the window of deduplication.
func announced(user string, announce func(string) ([]webhook.Delivery, error)) (notice, error) {
	ds, err := announce(user)
	if err != nil {
		return notice{}, err
	}
	var r request
	if err := r.prepare(ds); err != nil {
		return notice{}, err
	}
	for i := range r.puts {
		r.puts[i].known = true
	}
	return notice{user, r.puts}, nil
}

// bytesOf is what the file needs for puts.
func bytesOf(puts []put) (n int64) {
	for i := range puts {
		n += int64(len(puts[i].row))
	}
	return n
}

// memberBytes is about what a member costs in the file.
const memberBytes = 64

// Join implements webhook.Roster.
func (q *Queue) Join(ctx context.Context, audience string, gen uint64, users []string, announce func(string) ([]webhook.Delivery, error)) (int, error) {
	if err := q.enter(ctx); err != nil {
		return 0, err
	}
	defer q.calls.Done()
	if err := checkAudience(audience); err != nil {
		return 0, err
	}
	for _, user := range users {
		if n := len(user); n < 1 || n > 255 {
			return 0, fmt.Errorf("boltqueue: member of %d bytes, not 1 to 255", n)
		}
	}
	if len(users) == 0 {
		return 0, nil
	}
	// In the order of the file, each page is visited once.
	users = slices.Compact(slices.Sorted(slices.Values(users)))
	notices := make(map[string]notice)
	for {
		// Who is new is found first, and announced by the caller's goroutine;
		// it is found again if somebody left in the meantime.
		joining, err := q.newcomers(ctx, audience, users, notices)
		if err != nil {
			return 0, err
		}
		for _, user := range joining {
			if notices[user], err = announced(user, announce); err != nil {
				return 0, err
			}
		}
		r := &request{work: func(e *edit, r *request) error {
			return e.join(r, audience, gen, users, notices)
		}}
		if err := q.do(ctx, r); !errors.Is(err, errNotice) {
			return r.stored, err
		}
	}
}

// errNotice says that somebody joins for whom there is no notice yet.
var errNotice = errors.New("boltqueue: no notice")

// newcomers returns those of users that are not in the audience and have no
// notice yet.
func (q *Queue) newcomers(ctx context.Context, audience string, users []string, notices map[string]notice) (joining []string, err error) {
	err = q.view(ctx, func(tx *bolt.Tx) error {
		b := members(tx, audience)
		for _, user := range users {
			if b != nil && b.Get([]byte(user)) != nil {
				continue
			}
			if _, ok := notices[user]; !ok {
				notices[user] = notice{} // each is announced once
				joining = append(joining, user)
			}
		}
		return nil
	})
	return joining, err
}

// join makes members of users, which are sorted, unless notices lacks that of
// one.
func (e *edit) join(r *request, audience string, gen uint64, users []string, notices map[string]notice) error {
	b := members(e.tx, audience)
	var puts []put
	mark := make([]string, 0, len(users)) // who is not marked as seen
	joined, n := 0, int64(0)
	for _, user := range users {
		var was []byte
		if b != nil {
			was = b.Get([]byte(user))
		}
		if was == nil {
			note, ok := notices[user]
			if !ok {
				r.err = errNotice
				return nil
			}
			joined++
			puts = append(puts, note.puts...)
			n += int64(len(user)) + memberBytes
		}
		if was == nil || generation(was) < gen {
			mark = append(mark, user)
		}
	}
	if n += bytesOf(puts); n > 0 && e.full(n) {
		r.err = webhook.ErrQueueFull
		return nil
	}
	e.used += n
	a, err := e.makeAudience(audience)
	if err != nil {
		return err
	}
	b = a.Bucket(bucketMembers)
	if last, _ := b.Cursor().Last(); last == nil || string(last) < users[0] {
		b.FillPercent = 0.9 // they come sorted
	}
	value := numberKey(gen)
	for _, user := range mark {
		if err := b.Put([]byte(user), value); err != nil {
			return err
		}
	}
	r.puts, r.stored = puts, joined
	return nil
}

// Leave implements webhook.Roster.
func (q *Queue) Leave(ctx context.Context, audience string, gen uint64, after string, limit int, announce func(string) ([]webhook.Delivery, error)) (string, int, error) {
	if err := q.enter(ctx); err != nil {
		return "", 0, err
	}
	defer q.calls.Done()
	last, leaving, err := q.leavers(ctx, audience, gen, after, limit)
	if err != nil {
		return "", 0, err
	}
	notices := make([]notice, len(leaving))
	for i, user := range leaving {
		if notices[i], err = announced(user, announce); err != nil {
			return "", 0, err
		}
	}
	if len(notices) == 0 {
		return last, 0, nil
	}
	r := &request{work: func(e *edit, r *request) error { return e.leave(r, audience, gen, notices) }}
	if err := q.do(ctx, r); err != nil {
		return "", 0, err
	}
	return last, r.stored, nil
}

// leavers goes through up to limit members after the one named after. It
// returns the last of them, "" if there are no more, and those last seen before
// gen.
func (q *Queue) leavers(ctx context.Context, audience string, gen uint64, after string, limit int) (last string, leaving []string, err error) {
	err = q.view(ctx, func(tx *bolt.Tx) error {
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
			last = string(k)
			if generation(v) < gen {
				leaving = append(leaving, last)
			}
		}
		last = ""
		return nil
	})
	return last, leaving, err
}

// leave removes those who have a notice, unless they were seen again in the
// meantime.
func (e *edit) leave(r *request, audience string, gen uint64, notices []notice) error {
	b := members(e.tx, audience)
	if b == nil {
		return nil
	}
	var puts []put
	var left []string
	for _, note := range notices {
		if v := b.Get([]byte(note.user)); v != nil && generation(v) < gen {
			puts = append(puts, note.puts...)
			left = append(left, note.user)
		}
	}
	n := bytesOf(puts)
	if e.full(n) {
		r.err = webhook.ErrQueueFull
		return nil
	}
	e.used += n
	for _, user := range left {
		if err := b.Delete([]byte(user)); err != nil {
			return err
		}
	}
	r.puts, r.stored = puts, len(left)
	return nil
}

// Members implements webhook.Roster.
func (q *Queue) Members(ctx context.Context, audience, after string) iter.Seq2[string, error] {
	from := []byte(after)
	if after != "" {
		from = append(from, 0) // just after it
	}
	return storekit.Pages(from, func(from []byte) ([]string, []byte, error) {
		return q.membersFrom(ctx, audience, from)
	})
}

// membersFrom returns the next members from the name from on, and where the
// next begin, nil if there are no more.
func (q *Queue) membersFrom(ctx context.Context, audience string, from []byte) (chunk []string, more []byte, err error) {
	err = q.view(ctx, func(tx *bolt.Tx) error {
		b := members(tx, audience)
		if b == nil {
			return nil
		}
		c := b.Cursor()
		for k, _ := c.Seek(from); k != nil; k, _ = c.Next() {
			if len(chunk) == chunkRows {
				more = bytes.Clone(k)
				return nil
			}
			chunk = append(chunk, string(k))
		}
		return nil
	})
	return chunk, more, err
}

// Audiences implements webhook.Rosters.
func (q *Queue) Audiences(ctx context.Context) iter.Seq2[webhook.RosterAudience, error] {
	return storekit.Pages([]byte(nil), func(from []byte) ([]webhook.RosterAudience, []byte, error) {
		return q.audiencesFrom(ctx, from)
	})
}

// audiencesFrom returns the next audiences from the name from on, and where the
// next begin, nil if there are no more.
func (q *Queue) audiencesFrom(ctx context.Context, from []byte) (chunk []webhook.RosterAudience, more []byte, err error) {
	err = q.view(ctx, func(tx *bolt.Tx) error {
		all := tx.Bucket(bucketAudiences)
		c, n := all.Cursor(), 0
		for k, _ := c.Seek(from); k != nil; k, _ = c.Next() {
			if n == chunkRows {
				more = bytes.Clone(k)
				return nil
			}
			n++
			if a := all.Bucket(k); a != nil {
				if g := generation(a.Get(rowGeneration)); g > 0 {
					chunk = append(chunk, webhook.RosterAudience{Name: string(k), Generation: g})
				}
			}
		}
		return nil
	})
	return chunk, more, err
}
