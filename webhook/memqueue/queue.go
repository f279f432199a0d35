// Package memqueue keeps deliveries in memory: a webhook.Queue for tests, for
// development, and for events whose loss does not matter. Everything in it is
// lost with the process.
//
//	f, err := webhook.New(webhook.Config{Queue: memqueue.New(memqueue.Config{}), ...})
package memqueue

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/hookferry/analytics/internal/seen"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/internal/lanes"
	"github.com/hookferry/analytics/webhook/internal/pages"
)

// The defaults of Config.
const (
	DefaultMaxBytes    = 256 << 20
	DefaultDedupWindow = 24 * time.Hour
	DefaultDedupMax    = 1_000_000
)

// overhead is about what a delivery, a dead letter or a member costs beside its
// own bytes.
const overhead = 512

// Config configures a Queue. The zero value is ready for use.
type Config struct {
	// MaxBytes bounds the bytes of all deliveries that wait, of the dead
	// letters, and of the members of audiences, each counted with 512 bytes
	// beside its own. Put, Join and Leave return webhook.ErrQueueFull where
	// they would exceed it; what is stored may always be retried and buried.
	// Zero means DefaultMaxBytes, 256 MB of 1,048,576 bytes.
	MaxBytes int64
	// DedupWindow is how long a delivery that was put is recognised when it
	// is put again. Zero means DefaultDedupWindow, 24 hours.
	DedupWindow time.Duration
	// DedupMax bounds how many puts are remembered for that, at about 32
	// bytes each; half as many are in any case remembered for DedupWindow.
	// Zero means DefaultDedupMax, 1,000,000.
	DedupMax int
}

// A Queue is a webhook.Queue, and webhook.DeadLetters, webhook.Counter,
// webhook.DestinationCounter, webhook.Roster, webhook.Rosters and webhook.Pauses too.
type Queue struct {
	maxBytes int64

	mu     sync.Mutex
	closed bool
	table  *lanes.Table
	seen   *seen.Window
	seq    uint64 // of the latest delivery or dead letter
	bytes  int64
	dead   []*deadLetter // in the order they died
	roster map[string]*audience
	paused map[string]time.Time // since when, by destination
}

var (
	_ webhook.Queue       = (*Queue)(nil)
	_ webhook.DeadLetters = (*Queue)(nil)
	_ webhook.Counter     = (*Queue)(nil)
	_ webhook.Roster      = (*Queue)(nil)
	_ webhook.Rosters     = (*Queue)(nil)
	_ webhook.Pauses      = (*Queue)(nil)

	_ webhook.DestinationCounter = (*Queue)(nil)
)

// New returns an empty queue.
func New(c Config) *Queue {
	if c.MaxBytes <= 0 {
		c.MaxBytes = DefaultMaxBytes
	}
	if c.DedupWindow <= 0 {
		c.DedupWindow = DefaultDedupWindow
	}
	if c.DedupMax <= 0 {
		c.DedupMax = DefaultDedupMax
	}
	return &Queue{
		maxBytes: c.MaxBytes,
		table:    lanes.New(nil),
		seen:     seen.New(c.DedupMax, c.DedupWindow),
		roster:   make(map[string]*audience),
		paused:   make(map[string]time.Time),
	}
}

// lock locks q.mu for a call, unless its context has ended or the queue is closed.
func (q *Queue) lock(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return webhook.ErrClosed
	}
	return nil
}

// Put implements webhook.Queue.
func (q *Queue) Put(ctx context.Context, ds ...webhook.Delivery) (int, error) {
	puts, err := prepare(make([]put, 0, len(ds)), ds)
	if err != nil {
		return 0, err
	}
	if err := q.lock(ctx); err != nil {
		return 0, err
	}
	defer q.mu.Unlock()
	now := time.Now()
	fresh, err := q.admit(puts, 0, now)
	if err != nil {
		return 0, err
	}
	q.store(fresh, now)
	return len(fresh), nil
}

// A put is a delivery about to be stored.
type put struct {
	key   seen.Key
	known bool // is stored without a look at what was put before
	item  *lanes.Item
	dest  string
}

// prepare checks and copies ds, before the queue is locked.
func prepare(puts []put, ds []webhook.Delivery) ([]put, error) {
	for i := range ds {
		d := &ds[i]
		if err := d.Check(); err != nil {
			return nil, fmt.Errorf("memqueue: %w", err)
		}
		puts = append(puts, put{
			key:  seen.KeyOf(d.Destination, d.ID),
			item: &lanes.Item{Delivery: lanes.Clone(d), Order: lanes.Order{At: d.Due.UnixMicro()}},
			dest: d.Destination,
		})
	}
	return puts, nil
}

// admit leaves out of puts what was put before, and remembers the rest, unless
// these and extra bytes do not fit.
func (q *Queue) admit(puts []put, extra int64, now time.Time) ([]put, error) {
	fresh := puts[:0]
	for _, p := range puts {
		if p.known || q.seen.Add(p.key, now) {
			fresh = append(fresh, p)
			extra += sizeOf(p.item)
		}
	}
	if q.bytes+extra > q.maxBytes {
		for _, p := range fresh {
			if !p.known {
				q.seen.Remove(p.key)
			}
		}
		return nil, webhook.ErrQueueFull
	}
	return fresh, nil
}

// store adds what admit has let in.
func (q *Queue) store(puts []put, now time.Time) {
	for _, p := range puts {
		l := q.table.Lane(p.dest)
		p.item.Destination = l.Name
		q.seq++
		p.item.Seq = q.seq
		q.bytes += sizeOf(p.item)
		q.table.Add(l, p.item, now.UnixMicro())
	}
}

// sizeOf returns what it counts for; it does not change while it is stored.
func sizeOf(it *lanes.Item) int64 {
	return int64(len(it.Body)+len(it.ID)+len(it.MessageID)+len(it.Source)+len(it.User)+len(it.Event)) + overhead
}

// Lease implements webhook.Queue. Room is called with the queue locked.
func (q *Queue) Lease(ctx context.Context, req webhook.LeaseRequest, dst []webhook.Delivery) ([]webhook.Delivery, time.Time, error) {
	if req.Max < 1 {
		return dst, time.Time{}, errors.New("memqueue: lease of less than one delivery")
	}
	take := lanes.Take{Max: req.Max, Until: req.Until.UnixMicro(), Room: req.Room, Out: dst}
	if err := q.lock(ctx); err != nil {
		return dst, time.Time{}, err
	}
	defer q.mu.Unlock()
	now := time.Now().UnixMicro()
	q.table.Begin(&take, now)
	defer q.table.End() // Room may panic
	q.table.Serve(&take, now)
	return take.Out, q.table.Next(now), nil
}

// Settle implements webhook.Queue.
func (q *Queue) Settle(ctx context.Context, ss ...webhook.Settlement) error {
	for i := range ss {
		s := &ss[i]
		if s.Verdict < webhook.Done || s.Verdict > webhook.Renew {
			return fmt.Errorf("memqueue: settlement with verdict %d", s.Verdict)
		}
		if err := s.Delivery.Check(); err != nil {
			return fmt.Errorf("memqueue: %w", err)
		}
	}
	if err := q.lock(ctx); err != nil {
		return err
	}
	defer q.mu.Unlock()
	now := time.Now().UnixMicro()
	for i := range ss {
		s := &ss[i]
		it := q.table.Leased(s.Delivery.Lease)
		if it == nil {
			continue
		}
		switch s.Verdict {
		case webhook.Done:
			q.bytes -= sizeOf(it)
			q.table.Remove(it, now)
		case webhook.Retry:
			lanes.Update(&it.Delivery, &s.Delivery)
			q.seq++
			q.table.Move(it, lanes.Order{At: s.Delivery.Due.UnixMicro(), Seq: q.seq}, now)
		case webhook.Bury:
			q.table.Remove(it, now)
			lanes.Update(&it.Delivery, &s.Delivery)
			q.bury(it, s.Reason, s.At)
		case webhook.Renew:
			q.table.Renew(it, s.Delivery.Due.UnixMicro(), now)
		}
	}
	return nil
}

// Count implements webhook.Counter.
func (q *Queue) Count(ctx context.Context) (webhook.Counts, error) {
	if err := q.lock(ctx); err != nil {
		return webhook.Counts{}, err
	}
	defer q.mu.Unlock()
	now := time.Now().UnixMicro()
	items, leased := q.table.Len(now)
	c := webhook.Counts{Waiting: items, Leased: leased, Dead: len(q.dead)}
	if at, ok := q.table.Oldest(now); ok {
		c.Oldest = time.UnixMicro(at).UTC()
	}
	return c, nil
}

// CountByDestination implements webhook.DestinationCounter.
func (q *Queue) CountByDestination(ctx context.Context) iter.Seq2[webhook.DestinationCounts, error] {
	return pages.One(func() ([]webhook.DestinationCounts, error) { return q.countLanes(ctx) })
}

func (q *Queue) countLanes(ctx context.Context) ([]webhook.DestinationCounts, error) {
	if err := q.lock(ctx); err != nil {
		return nil, err
	}
	defer q.mu.Unlock()
	return q.table.Count(time.Now().UnixMicro(), nil), nil
}

// Close implements webhook.Queue. It forgets everything.
func (q *Queue) Close() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.table, q.seen, q.dead, q.roster, q.paused = nil, nil, nil, nil, nil
	return nil
}
