// Package memqueue provides a store.Store that keeps deliveries in memory. It is
// for tests, for development, and for events whose loss does not matter. When the
// process ends, everything in it is lost.
//
//	f, err := webhook.New(webhook.Config{Store: memqueue.New(memqueue.Config{}), ...})
package memqueue

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"
	"sync"
	"time"
	"unique"

	"github.com/hookferry/analytics/audience"
	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/webhook/store"
)

// The defaults of Config.
const (
	DefaultMaxBytes    = 256 << 20
	DefaultDedupWindow = 24 * time.Hour
	DefaultDedupMax    = 1_000_000
)

// overhead is an estimate of the memory, in bytes, that a delivery, a dead letter or a member takes
// besides its strings and body.
const overhead = 512

// Config configures a Store. The zero value is ready for use.
type Config struct {
	// MaxBytes bounds the memory for waiting deliveries, dead letters and members of audiences.
	// Each counts its own bytes and 512 more. Put and UpdateAudience return store.ErrQueueFull if
	// they would exceed MaxBytes. Settle never does, so stored deliveries can always be retried and
	// buried. Zero means DefaultMaxBytes, 256 MiB. store.Unlimited means no bound.
	MaxBytes int64
	// DedupWindow is how long Put recognises a delivery that was put before. Zero means
	// DefaultDedupWindow, 24 hours.
	DedupWindow time.Duration
	// DedupMax bounds how many deliveries the dedup window remembers, at about 40 bytes each. The
	// latest DedupMax/2 always stay in it for the whole DedupWindow. Zero means DefaultDedupMax,
	// 1,000,000.
	DedupMax int
}

// A Store is a store.Store and an audience.Roster.
type Store struct {
	mu     sync.Mutex // guards the fields below
	closed bool
	contents
	seen      *store.Window
	settings  map[string]store.Setting
	documents store.DocumentMap

	audiences map[string]*members // by audience id
}

// contents holds the deliveries and the dead letters.
type contents struct {
	maxBytes int64
	bytes    int64 // the bytes that count toward maxBytes
	changed  chan struct{}

	seq    uint64           // the number of the latest delivery, claim, retry, dead letter or setting
	lanes  map[string]*lane // by destination; only those with deliveries
	claims map[uint64]*item
	dead   map[string]*store.Ended // by key; a dead letter never changes
}

var (
	_ store.Store     = (*Store)(nil)
	_ audience.Roster = (*Store)(nil)
)

// New returns an empty store. If c has a negative value other than store.Unlimited, New panics
// with an error that names the field.
func New(c Config) *Store {
	if c.MaxBytes == store.Unlimited {
		c.MaxBytes = math.MaxInt64
	}
	for name, value := range map[string]int64{"MaxBytes": c.MaxBytes, "DedupWindow": int64(c.DedupWindow), "DedupMax": int64(c.DedupMax)} {
		if value < 0 {
			panic(fmt.Errorf("memqueue: %s: %d is negative", name, value))
		}
	}
	c.MaxBytes = cmp.Or(c.MaxBytes, DefaultMaxBytes)
	c.DedupWindow = cmp.Or(c.DedupWindow, DefaultDedupWindow)
	c.DedupMax = cmp.Or(c.DedupMax, DefaultDedupMax)
	s := &Store{
		contents: contents{
			maxBytes: c.MaxBytes, changed: make(chan struct{}, 1), lanes: make(map[string]*lane),
			claims: make(map[uint64]*item), dead: make(map[string]*store.Ended),
		},
		seen:      store.NewWindow(c.DedupMax, c.DedupWindow),
		settings:  make(map[string]store.Setting),
		audiences: make(map[string]*members),
	}
	return s
}

// lock locks s.mu, unless ctx has ended or the store is closed: then it returns an error.
func (s *Store) lock(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return store.ErrClosed
	}
	return nil
}

// page yields the elements that list returns. It calls list with s.mu locked.
func page[T any](ctx context.Context, s *Store, list func() []T) iter.Seq2[T, error] {
	return store.Page(func() ([]T, error) {
		if err := s.lock(ctx); err != nil {
			return nil, err
		}
		defer s.mu.Unlock()
		return list(), nil
	})
}

// newItem returns an item with a deep copy of d, or the error of d.Check.
func newItem(d *store.Delivery) (*item, error) {
	if err := d.Check(); err != nil {
		return nil, fmt.Errorf("memqueue: %w", err)
	}
	it := &item{Delivery: *d, key: store.KeyOf(d.Destination, d.ID)}
	it.Due, it.Claim = micros(d.Due), 0
	it.ID = strings.Clone(d.ID)
	if it.MessageID = it.ID; d.MessageID != d.ID { // usually equal: share the memory
		it.MessageID = strings.Clone(d.MessageID)
	}
	it.User = strings.Clone(d.User)
	it.Source, it.Event, it.Type = shared(d.Source), shared(d.Event), shared(d.Type)
	it.Body = exactly(d.Body)
	it.Closed = exactly(d.Closed)
	it.Attempts = exactly(d.Attempts)
	it.Trace = event.Trace{Parent: strings.Clone(d.Trace.Parent), State: strings.Clone(d.Trace.State)}
	return it, nil
}

// shared returns s in memory that equal strings share.
func shared(s string) string {
	if s == "" {
		return ""
	}
	return unique.Make(s).Value()
}

// exactly returns a copy of s without spare capacity. Callers of Fetch get such slices. Without
// spare capacity, an append by a caller does not write into the store's memory.
func exactly[T any](s []T) []T { return slices.Clip(slices.Clone(s)) }

// Put implements store.Store.
func (s *Store) Put(ctx context.Context, ps []store.Put, out []store.Result) error {
	items := make([]*item, len(ps))
	for i := range ps {
		var err error
		if items[i], err = newItem(&ps[i].Delivery); err != nil {
			return err
		}
	}
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer s.mu.Unlock()
	var bytes int64
	now := time.Now()
	for i, it := range items {
		if out[i] = (store.Result{Stored: ps[i].NoDedup || s.seen.Add(it.key, now)}); out[i].Stored {
			bytes += size(&it.Delivery)
		}
	}
	if err := s.room(bytes); err != nil {
		for i, it := range items {
			if out[i].Stored && !ps[i].NoDedup {
				s.seen.Remove(it.key)
			}
		}
		return err
	}
	for i, it := range items {
		if !out[i].Stored {
			continue
		}
		s.add(it)
		if ps[i].Keep {
			out[i].Claim = s.claim(it)
		} else {
			it.queue().push(it)
		}
	}
	return nil
}

// room returns an error if the store would exceed Config.MaxBytes by storing this many more bytes.
func (c *contents) room(bytes int64) error {
	switch {
	case bytes > c.maxBytes:
		return store.ErrTooLarge
	case c.bytes+bytes > c.maxBytes:
		return store.ErrQueueFull
	}
	return nil
}

// add adds an item to its lane and to the counters. The caller then claims or queues the item.
func (c *contents) add(it *item) {
	l := c.lanes[it.Destination]
	if l == nil {
		l = &lane{name: strings.Clone(it.Destination)}
		c.lanes[l.name] = l
	}
	c.seq++
	it.lane, it.Destination, it.seq = l, l.name, c.seq
	l.waiting++
	c.bytes += size(&it.Delivery)
}

// drop undoes add. The item must not be claimed. drop does not remove it from its queue: the caller
// does.
func (c *contents) drop(it *item) {
	if it.lane.waiting--; it.lane.waiting == 0 {
		delete(c.lanes, it.lane.name)
	}
	c.bytes -= size(&it.Delivery)
}

// claim claims an item, and returns the claim. The item must not be in a queue.
func (c *contents) claim(it *item) uint64 {
	c.seq++
	it.Claim = c.seq
	c.claims[it.Claim] = it
	it.lane.claimed++
	return it.Claim
}

// Fetch implements store.Store.
func (s *Store) Fetch(ctx context.Context, wants []store.Want, maxBytes int64, dst []store.Delivery) ([]store.Delivery, error) {
	if err := s.lock(ctx); err != nil {
		return dst, err
	}
	defer s.mu.Unlock()
	now, had := now(), len(dst)
	for i := range wants {
		w := &wants[i]
		w.Next = time.Time{}
		l := s.lanes[w.Destination]
		if l == nil {
			continue
		}
		q := &l.fresh
		if w.Retries {
			q = &l.retries
		}
		for range w.Max {
			it := q.first()
			if it == nil || it.Due.After(now) {
				break
			}
			if maxBytes -= int64(len(it.Body)); maxBytes < 0 && len(dst) > had {
				break // later wants break here, too: maxBytes stays negative
			}
			q.pop(it)
			s.claim(it)
			dst = append(dst, it.Delivery)
		}
		w.Next = q.due()
	}
	return dst, nil
}

// Settle implements store.Store.
func (s *Store) Settle(ctx context.Context, ss []store.Settlement) (int, error) {
	if err := s.lock(ctx); err != nil {
		return 0, err
	}
	defer s.mu.Unlock()
	for i := range ss {
		if err := s.settle(&ss[i]); err != nil {
			return i, fmt.Errorf("memqueue: %w", err)
		}
	}
	return len(ss), nil
}

func (c *contents) settle(by *store.Settlement) error {
	if err := by.Check(); err != nil {
		return err
	}
	d := &by.Delivery
	it := c.claims[d.Claim]
	if it == nil {
		return nil
	}
	delete(c.claims, d.Claim)
	it.Claim = 0
	it.lane.claimed--
	if by.Verdict == store.Retry || by.Verdict == store.Bury {
		it.Tries, it.Closed, it.Attempts = d.Tries, exactly(d.Closed), exactly(d.Attempts)
		c.seq++
	}
	switch by.Verdict {
	case store.Retry:
		it.Due, it.Expires, it.seq = micros(d.Due), d.Expires, c.seq
		it.queue().push(it)
	case store.Return:
		it.queue().push(it)
	case store.Done:
		c.drop(it)
	case store.Bury:
		c.drop(it)
		key := fmt.Sprintf("%016x%016x", uint64(by.At.UnixMicro())^1<<63, c.seq) // sorts by time of death
		c.dead[key] = &store.Ended{Delivery: it.Delivery, Reason: by.Reason, At: by.At, Key: key}
		c.bytes += size(&it.Delivery)
	}
	return nil
}

// Heads implements store.Store.
func (s *Store) Heads(ctx context.Context, all bool) iter.Seq2[store.Head, error] {
	return page(ctx, s, func() (heads []store.Head) {
		for _, l := range s.lanes {
			if (all || l.news) && l.claimed < l.waiting {
				heads = append(heads, l.head())
			}
			l.news = l.news && all
		}
		return heads
	})
}

// announce makes the next Heads(false) yield l, and signals Changed. It is called for changes that
// the scheduler of the forwarder does not know of.
func (c *contents) announce(l *lane) {
	l.news = true
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// Changed implements store.Store.
func (s *Store) Changed() <-chan struct{} { return s.changed }

// Now implements store.Store.
func (s *Store) Now() time.Time { return now() }

// now returns the time to the microsecond. The forwarder asks for it several times a delivery, and
// time.Time.Truncate is slower.
func now() time.Time { return time.UnixMicro(time.Now().UnixMicro()).UTC() }

// micros returns t in UTC, to the microsecond.
func micros(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }

// Close implements store.Store. It drops all data.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.lanes, s.seen, s.claims, s.dead, s.settings, s.audiences = nil, nil, nil, nil, nil, nil
	return nil
}

// An item is a stored delivery. It is either in one of its lane's queues, or claimed.
type item struct {
	store.Delivery
	lane        *lane
	seq         uint64
	left, right *item // the children in a heap; in the list of a queue, right is the next item
	key         store.Key
}

// size returns how many bytes a delivery counts for Config.MaxBytes. Retries do not change this
// size.
func size(d *store.Delivery) int64 {
	return int64(len(d.Body)+len(d.ID)+len(d.MessageID)+len(d.Source)+len(d.User)+len(d.Event)) + overhead
}

// compare is the order of items: by due time, then by seq.
func (it *item) compare(other *item) int {
	return cmp.Or(it.Due.Compare(other.Due), cmp.Compare(it.seq, other.seq))
}

// queue returns the queue for the item: fresh before its first attempt, afterwards retries.
func (it *item) queue() *queue {
	if it.Expires.IsZero() {
		return &it.lane.fresh
	}
	return &it.lane.retries
}

// A lane holds the deliveries of one destination. The store has no empty lanes.
type lane struct {
	name             string
	waiting, claimed int   // waiting counts all items, claimed ones included
	news             bool  // the next Heads(false) yields the lane
	fresh, retries   queue // the items that are not claimed
}

// unclaimed returns the items in the queues of the lane, in no order.
func (l *lane) unclaimed() []*item {
	items := []*item{l.fresh.list, l.fresh.heap, l.retries.list, l.retries.heap}
	for i := 0; i < len(items); i++ {
		if it := items[i]; it != nil {
			items = append(items, it.left, it.right)
		}
	}
	return slices.DeleteFunc(items, func(it *item) bool { return it == nil })
}

// head returns the Due of the first item in each queue.
func (l *lane) head() store.Head {
	return store.Head{Destination: l.name, Fresh: l.fresh.due(), Retry: l.retries.due()}
}

// A queue is a priority queue of items. The items hold the links, so push allocates nothing. An
// item that sorts after the tail is appended to the list, which is cheap however long the list is.
// Any other item goes into a skew heap.
type queue struct{ list, tail, heap *item }

func (q *queue) push(it *item) {
	switch {
	case q.list == nil:
		q.list, q.tail = it, it
	case q.tail.compare(it) < 0:
		q.tail.right, q.tail = it, it
	default:
		q.heap = meld(q.heap, it)
	}
}

// first returns the first item, or nil if there is none.
func (q *queue) first() *item {
	if q.list == nil || q.heap != nil && q.heap.compare(q.list) < 0 {
		return q.heap
	}
	return q.list
}

// pop removes the item it, which must be the first one.
func (q *queue) pop(it *item) {
	if it == q.list {
		q.list = it.right
	} else {
		q.heap = meld(it.left, it.right)
	}
	it.left, it.right = nil, nil
}

// due returns the Due of the first item, or zero if there is none.
func (q *queue) due() time.Time {
	if it := q.first(); it != nil {
		return it.Due
	}
	return time.Time{}
}

// meld merges two skew heaps. It goes down the right side of each heap, and swaps the children of
// every node that it passes. The swaps keep the amortised cost at O(log n).
func meld(a, b *item) *item {
	var top *item
	for at := &top; ; at = &(*at).left {
		if a == nil || b != nil && b.compare(a) < 0 {
			a, b = b, a
		}
		if *at = a; b == nil {
			return top
		}
		rest := a.right
		a.right = a.left
		a = rest
	}
}
