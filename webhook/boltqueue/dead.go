package boltqueue

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"iter"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/internal/lanes"
	"github.com/hookferry/analytics/webhook/storekit"
)

// The most that is read of dead letters and members in one go.
const (
	chunkRows  = 1024
	chunkBytes = 1 << 20
)

// view reads the database. Nothing that fn was given is good afterwards.
func (q *Queue) view(ctx context.Context, fn func(*bolt.Tx) error) error {
	if err := q.enter(ctx); err != nil {
		return err
	}
	defer q.calls.Done()
	q.mu.Lock()
	tx, err := q.snapshot()
	q.mu.Unlock()
	if err != nil {
		return err
	}
	return protect(q.path, func() error {
		defer tx.Rollback()
		return fn(tx)
	})
}

// DeadLetter implements webhook.DeadLetters.
func (q *Queue) DeadLetter(ctx context.Context, key string) (webhook.DeadLetter, error) {
	var d webhook.DeadLetter
	k, err := hex.DecodeString(key)
	if err != nil || len(k) != deadKeyLen || hex.EncodeToString(k) != key {
		k = nil // of no dead letter, but a store that is closed says so
	}
	if err := q.flushDead(ctx); err != nil {
		return d, err
	}
	err = q.view(ctx, func(tx *bolt.Tx) error {
		v := tx.Bucket(bucketDead).Get(k)
		if v == nil {
			return webhook.ErrNoDeadLetter
		}
		if err := unseal(v, &d); err != nil {
			return fmt.Errorf("boltqueue: dead letter %x: %w", k, err)
		}
		d.Key = key
		return nil
	})
	return d, err
}

// Dead implements webhook.DeadLetters.
func (q *Queue) Dead(ctx context.Context, filter webhook.DeadFilter, after string) iter.Seq2[webhook.DeadLetter, error] {
	from, err := deadFrom(filter, after)
	return storekit.Pages(from, func(from []byte) ([]webhook.DeadLetter, []byte, error) {
		if err != nil {
			return nil, nil, err
		}
		return q.deadAfter(ctx, filter, from)
	})
}

// deadFrom returns the first key that the filter may select after the one named
// after.
func deadFrom(filter webhook.DeadFilter, after string) ([]byte, error) {
	from := make([]byte, deadKeyLen)
	if after != "" {
		k, err := hex.DecodeString(after)
		if err != nil || len(k) != deadKeyLen {
			return nil, fmt.Errorf("boltqueue: %q is not the key of a dead letter", after)
		}
		from = append(k, 0) // just after k
	}
	if !filter.From.IsZero() {
		if k := orderKey(nil, lanes.Order{At: filter.From.UnixMicro()}); bytes.Compare(k, from) > 0 {
			from = k
		}
	}
	return from, nil
}

// deadAfter returns the matching ones of the next dead letters from the key
// from on, and where the next begin, nil if there are no more.
func (q *Queue) deadAfter(ctx context.Context, filter webhook.DeadFilter, from []byte) (chunk []webhook.DeadLetter, more []byte, err error) {
	if err := q.flushDead(ctx); err != nil {
		return nil, nil, err
	}
	err = q.view(ctx, func(tx *bolt.Tx) error {
		c := tx.Bucket(bucketDead).Cursor()
		rows, size := 0, 0
		for k, v := c.Seek(from); k != nil; k, v = c.Next() {
			if rows == chunkRows || size > chunkBytes {
				more = bytes.Clone(k)
				return nil
			}
			if len(k) != deadKeyLen || !filter.To.IsZero() && readOrder(k).At >= filter.To.UnixMicro() {
				return nil
			}
			rows++
			size += len(v)
			var d webhook.DeadLetter
			if err := unseal(v, &d); err != nil {
				return fmt.Errorf("boltqueue: dead letter %x: %w", k, err)
			}
			if filter.Match(&d) {
				d.Key = hex.EncodeToString(k)
				chunk = append(chunk, d)
			}
		}
		return nil
	})
	return chunk, more, err
}

// flushDead returns once the database holds all dead letters.
func (q *Queue) flushDead(ctx context.Context) error {
	if err := q.enter(ctx); err != nil {
		return err
	}
	defer q.calls.Done()
	q.mu.Lock()
	flushed := len(q.tail.dead) == 0 && (q.sealed == nil || len(q.sealed.dead) == 0)
	q.mu.Unlock()
	if flushed {
		return nil
	}
	return q.do(ctx, &request{work: nothing})
}

// Revive implements webhook.DeadLetters.
func (q *Queue) Revive(ctx context.Context, keys ...string) (int, error) {
	return q.exhume(ctx, keys, func(e *edit, r *request, v []byte) error {
		var d webhook.DeadLetter
		if err := unseal(v, &d); err != nil {
			return err
		}
		d.Due = e.now.UTC().Truncate(time.Microsecond)
		d.Expires, d.Tries, d.Closed = time.Time{}, 0, nil
		p, err := newPut(&d.Delivery, nil)
		p.known = true
		r.puts = append(r.puts, p)
		return err
	})
}

// Discard implements webhook.DeadLetters.
func (q *Queue) Discard(ctx context.Context, keys ...string) (int, error) {
	return q.exhume(ctx, keys, nil)
}

// exhume takes the dead letters with these keys away, and calls each with every
// one before that.
func (q *Queue) exhume(ctx context.Context, keys []string, each func(e *edit, r *request, v []byte) error) (int, error) {
	if err := q.enter(ctx); err != nil {
		return 0, err
	}
	defer q.calls.Done()
	var raw [][]byte
	for _, key := range keys {
		if k, err := hex.DecodeString(key); err == nil && len(k) == deadKeyLen {
			raw = append(raw, k)
		}
	}
	if len(raw) == 0 {
		return 0, nil
	}
	r := &request{}
	r.work = func(e *edit, r *request) error {
		dead := e.tx.Bucket(bucketDead)
		there := map[string]bool{}
		for _, k := range raw {
			v := dead.Get(k)
			if v == nil || there[string(k)] {
				continue
			}
			there[string(k)] = true
			if each == nil {
				continue
			}
			if err := each(e, r, v); err != nil {
				r.err, r.puts = fmt.Errorf("boltqueue: dead letter %x: %w", k, err), nil
				return nil
			}
		}
		for k := range there {
			if err := e.bucket(bucketDead).Delete([]byte(k)); err != nil {
				return err
			}
			e.changed.dead--
			r.stored++
		}
		return nil
	}
	if err := q.do(ctx, r); err != nil {
		return 0, err
	}
	return r.stored, nil
}
