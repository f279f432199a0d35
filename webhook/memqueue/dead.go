package memqueue

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/internal/lanes"
	"github.com/hookferry/analytics/webhook/internal/pages"
)

// A deadLetter is found by its key, which sorts as the letters died.
type deadLetter struct {
	webhook.DeadLetter
	item *lanes.Item
}

func (q *Queue) bury(it *lanes.Item, reason webhook.Reason, at time.Time) {
	q.seq++
	it.Claim = 0
	d := &deadLetter{item: it}
	d.DeadLetter = webhook.DeadLetter{
		Delivery: it.Delivery,
		Reason:   reason,
		Died:     at,
		Key:      fmt.Sprintf("%016x%016x", uint64(at.UnixMicro())^1<<63, q.seq),
	}
	i, _ := q.findDead(d.Key)
	q.dead = slices.Insert(q.dead, i, d)
}

// findDead returns the index of the dead letter with this key, or where it
// would be.
func (q *Queue) findDead(key string) (int, bool) {
	return slices.BinarySearchFunc(q.dead, key, func(d *deadLetter, key string) int {
		return strings.Compare(d.Key, key)
	})
}

// DeadLetter implements webhook.DeadLetters.
func (q *Queue) DeadLetter(ctx context.Context, key string) (webhook.DeadLetter, error) {
	if err := q.lock(ctx); err != nil {
		return webhook.DeadLetter{}, err
	}
	defer q.mu.Unlock()
	i, found := q.findDead(key)
	if !found {
		return webhook.DeadLetter{}, webhook.ErrNoDeadLetter
	}
	return q.dead[i].DeadLetter, nil
}

// Dead implements webhook.DeadLetters.
func (q *Queue) Dead(ctx context.Context, filter webhook.DeadFilter, after string) iter.Seq2[webhook.DeadLetter, error] {
	return pages.All(after, func(after string) ([]webhook.DeadLetter, string, error) {
		return q.deadAfter(ctx, filter, after)
	})
}

// deadAfter returns the matching ones of the next dead letters after the one
// whose key is after, and the key of the last it has looked at, "" if there are
// no more.
func (q *Queue) deadAfter(ctx context.Context, filter webhook.DeadFilter, after string) (chunk []webhook.DeadLetter, more string, err error) {
	if err := q.lock(ctx); err != nil {
		return nil, "", err
	}
	defer q.mu.Unlock()
	i, found := q.findDead(after)
	if found {
		i++
	}
	end := min(i+1024, len(q.dead))
	for ; i < end; i++ {
		if d := q.dead[i]; filter.Match(&d.DeadLetter) {
			chunk = append(chunk, d.DeadLetter)
		}
	}
	if end < len(q.dead) {
		more = q.dead[end-1].Key
	}
	return chunk, more, nil
}

// Revive implements webhook.DeadLetters.
func (q *Queue) Revive(ctx context.Context, keys ...string) (int, error) {
	return q.exhume(ctx, keys, func(d *deadLetter, now time.Time) {
		it := d.item
		it.Due, it.Expires, it.Tries, it.Closed = now.UTC().Truncate(time.Microsecond), time.Time{}, 0, nil
		q.seq++
		it.Order = lanes.Order{At: now.UnixMicro(), Seq: q.seq}
		q.table.Add(q.table.Lane(it.Destination), it, now.UnixMicro())
	})
}

// Discard implements webhook.DeadLetters.
func (q *Queue) Discard(ctx context.Context, keys ...string) (int, error) {
	return q.exhume(ctx, keys, func(d *deadLetter, _ time.Time) {
		q.bytes -= sizeOf(d.item)
	})
}

// exhume takes the dead letters with these keys away, and calls each with
// every one.
func (q *Queue) exhume(ctx context.Context, keys []string, each func(*deadLetter, time.Time)) (int, error) {
	if err := q.lock(ctx); err != nil {
		return 0, err
	}
	defer q.mu.Unlock()
	now := time.Now()
	n := 0
	for _, key := range keys {
		i, found := q.findDead(key)
		if !found || q.dead[i].item == nil {
			continue
		}
		each(q.dead[i], now)
		q.dead[i].item = nil
		n++
	}
	if n > 0 {
		q.dead = slices.DeleteFunc(q.dead, func(d *deadLetter) bool { return d.item == nil })
	}
	return n, nil
}
