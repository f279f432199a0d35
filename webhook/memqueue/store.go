// Package memqueue provides a store.Store that keeps deliveries in memory. It is
// for tests, for development, and for events whose loss does not matter. When the
// process ends, everything in it is lost.
//
//	s, err := memqueue.Open(memqueue.Config{})
//	f, err := webhook.New(webhook.Config{Store: s, ...})
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

	"github.com/hookferry/analytics/check"
	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/webhook/store"
)

// The defaults of Config.
const (
	DefaultMaxBytes    = 256 << 20
	DefaultDedupWindow = 24 * time.Hour
	DefaultDedupMax    = 1_000_000
)

// Config configures a Store. The zero value is ready for use.
type Config struct {
	// MaxBytes bounds the memory for waiting deliveries and dead letters. Each counts its own bytes and
	// 512 more. Put returns store.ErrQueueFull if it would exceed MaxBytes. Settle never does, so
	// stored deliveries can always be retried and buried. Zero means DefaultMaxBytes, 256 MiB.
	// store.Unlimited means no bound.
	MaxBytes int64
	// DedupWindow is how long Put recognises a delivery that was put before. Zero means
	// DefaultDedupWindow, 24 hours.
	DedupWindow time.Duration
	// DedupMax bounds how many deliveries the dedup window remembers, at about 40 bytes each. The
	// latest DedupMax/2 always stay in it for the whole DedupWindow. Zero means DefaultDedupMax,
	// 1,000,000.
	DedupMax int
	// HistoryBytes bounds the bytes of the deliveries that are kept after they were delivered, the latest
	// of them, in addition to MaxBytes. Zero keeps none.
	HistoryBytes int64
}

// A Store is a store.Store.
type Store struct {
	maxBytes, historyBytes int64
	changed                store.Signal

	mu        sync.Mutex // guards the fields below
	closed    bool
	bytes     int64 // the bytes that count toward maxBytes
	seen      *store.Window
	seq       uint64           // the number of the latest delivery, claim, retry or document
	lanes     map[string]*lane // by destination; only those whose deliveries wait
	claims    map[uint64]*item
	log       log
	kept      []*item                      // delivered ones, in the order in which they were, and some that are gone
	keptBytes int64                        // the sum of their sizes
	unkept    int64                        // the result of Unkept
	documents map[string][]*store.Document // of each folder, in the order of their names
	changes   store.DocumentChanges
}

var (
	_ store.Store   = (*Store)(nil)
	_ store.History = (*Store)(nil)
)

// Open returns an empty store. The error lists the fields of c that are not valid.
func Open(c Config) (*Store, error) {
	var wrong check.Faults
	check.Least(&wrong, "MaxBytes", &c.MaxBytes, store.Unlimited, DefaultMaxBytes)
	check.Least(&wrong, "DedupWindow", &c.DedupWindow, 0, DefaultDedupWindow)
	check.Least(&wrong, "DedupMax", &c.DedupMax, 0, DefaultDedupMax)
	check.Least(&wrong, "HistoryBytes", &c.HistoryBytes, 0, 0)
	if len(wrong) > 0 {
		return nil, wrong.Err("memqueue")
	}
	if c.MaxBytes == store.Unlimited {
		c.MaxBytes = math.MaxInt64
	}
	return &Store{
		maxBytes: c.MaxBytes, historyBytes: c.HistoryBytes, changed: store.NewSignal(), seen: store.NewWindow(c.DedupMax, c.DedupWindow),
		lanes: make(map[string]*lane), claims: make(map[uint64]*item), documents: make(map[string][]*store.Document),
	}, nil
}

// usable returns an error if ctx has ended or the store is closed. The caller holds s.mu.
func (s *Store) usable(ctx context.Context) error {
	if s.closed {
		return cmp.Or(ctx.Err(), store.ErrClosed)
	}
	return ctx.Err()
}

// page yields the elements that list returns. It calls list with s.mu locked.
func page[T any](ctx context.Context, s *Store, list func() []T) iter.Seq2[T, error] {
	return store.Page(func() ([]T, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if err := s.usable(ctx); err != nil {
			return nil, err
		}
		return list(), nil
	})
}

// newItem returns an item with a deep copy of d, or the error of d.Check.
func newItem(d *store.Delivery) (*item, error) {
	if err := d.Check(); err != nil {
		return nil, fmt.Errorf("memqueue: %w", err)
	}
	it := &item{record: store.Record{Delivery: *d, State: store.StateWaiting}, key: store.KeyOf(d.Destination, d.ID)}
	it.record.Due, it.record.Claim = micros(d.Due), 0
	it.record.ID = strings.Clone(d.ID)
	if it.record.MessageID = it.record.ID; d.MessageID != d.ID { // usually equal: share the memory
		it.record.MessageID = strings.Clone(d.MessageID)
	}
	it.record.User, it.record.Key = strings.Clone(d.User), strings.Clone(d.Key)
	it.record.Source, it.record.Event, it.record.Type, it.record.Tenant = shared(d.Source), shared(d.Event), shared(d.Type), shared(d.Tenant)
	it.record.Body = exactly(d.Body)
	it.record.Closed = exactly(d.Closed)
	it.record.Attempts = exactly(d.Attempts)
	it.record.Trace = event.Trace{Parent: strings.Clone(d.Trace.Parent), State: strings.Clone(d.Trace.State)}
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
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return err
	}
	var bytes int64
	now := time.Now()
	for i, it := range items {
		if out[i] = (store.Result{Stored: ps[i].NoDedup || s.seen.Add(it.key, now)}); out[i].Stored {
			bytes += size(&it.record.Delivery)
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
		switch {
		case !it.follow():
			out[i].Behind = true
		case ps[i].Keep:
			out[i].Claim = s.claim(it)
		default:
			it.queue().push(it)
		}
	}
	return nil
}

// room returns an error if the store would exceed Config.MaxBytes by storing this many more bytes.
func (s *Store) room(bytes int64) error {
	switch {
	case bytes > s.maxBytes:
		return store.ErrTooLarge
	case s.bytes+bytes > s.maxBytes:
		return store.ErrQueueFull
	}
	return nil
}

// add adds an item to the log, to its lane and to the counters. The caller then calls follow, and
// claims or queues the item unless it is behind another one.
func (s *Store) add(it *item) {
	l := s.lanes[it.record.Destination]
	if l == nil {
		l = &lane{name: strings.Clone(it.record.Destination)}
		s.lanes[l.name] = l
	}
	s.seq++
	it.lane, it.order = l, s.seq
	it.record.Destination, it.record.Seq = l.name, s.seq
	l.waiting++
	n := size(&it.record.Delivery)
	l.bytes, s.bytes = l.bytes+n, s.bytes+n
	s.log.items = append(s.log.items, it)
}

// exit takes an item, which is neither claimed nor in a queue, out of its lane. It returns when the
// item is due that was behind this one, or zero.
func (s *Store) exit(it *item) time.Time {
	it.lane.bytes -= size(&it.record.Delivery)
	if it.lane.waiting--; it.lane.waiting == 0 {
		delete(s.lanes, it.lane.name)
	}
	return it.part()
}

// remove removes an item, which is not claimed, from the store.
func (s *Store) remove(it *item) {
	n := size(&it.record.Delivery)
	switch it.record.State {
	case store.StateDelivered:
		s.keptBytes -= n
		n = 0
	case store.StateWaiting:
		it.gone = true
		it.queue().forget()
		if released := s.exit(it); !released.IsZero() {
			s.announce(it.lane)
		}
	case store.StateBehind:
		s.exit(it)
	}
	s.bytes -= n
	it.leave()
	s.log.forget()
}

// claim claims an item, and returns the claim. The item must not be in a queue.
func (s *Store) claim(it *item) uint64 {
	s.seq++
	it.record.Claim = s.seq
	s.claims[it.record.Claim] = it
	it.lane.claimed++
	return it.record.Claim
}

// Fetch implements store.Store.
func (s *Store) Fetch(ctx context.Context, wants []store.Want, maxBytes int64, dst []store.Delivery) ([]store.Delivery, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return dst, err
	}
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
			if it == nil || it.record.Due.After(now) {
				break
			}
			if maxBytes -= int64(len(it.record.Body)); maxBytes < 0 && len(dst) > had {
				break // later wants break here, too: maxBytes stays negative
			}
			q.pop(it)
			s.claim(it)
			dst = append(dst, it.record.Delivery)
		}
		w.Next = q.due()
	}
	return dst, nil
}

// Settle implements store.Store.
func (s *Store) Settle(ctx context.Context, ss []store.Settlement) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return 0, err
	}
	for i := range ss {
		if err := s.settle(&ss[i]); err != nil {
			return i, fmt.Errorf("memqueue: %w", err)
		}
	}
	return len(ss), nil
}

func (s *Store) settle(by *store.Settlement) error {
	if err := by.Check(); err != nil {
		return err
	}
	d := &by.Delivery
	it := s.claims[d.Claim]
	by.Released = time.Time{}
	if it == nil {
		return nil
	}
	delete(s.claims, d.Claim)
	it.record.Claim = 0
	it.lane.claimed--
	if by.Verdict != store.Return {
		it.record.Tries, it.record.Closed, it.record.Attempts = d.Tries, exactly(d.Closed), exactly(d.Attempts)
		it.record.Reason, it.record.At = by.Reason, by.At
	}
	switch by.Verdict {
	case store.Retry:
		s.seq++
		it.record.Due, it.record.Expires, it.order = micros(d.Due), d.Expires, s.seq
		it.record.Reason, it.record.At = "", time.Time{}
		it.queue().push(it)
	case store.Return:
		it.queue().push(it)
	case store.Bury:
		by.Released = s.exit(it)
		it.record.State = store.StateDead
	case store.Done:
		by.Released = s.exit(it)
		s.keep(it)
	}
	return nil
}

// keep adds a delivered item to the history, and removes the oldest ones beyond its bound.
func (s *Store) keep(it *item) {
	n := size(&it.record.Delivery)
	s.bytes -= n
	s.keptBytes += n
	it.record.State, it.record.Reason = store.StateDelivered, ""
	if n > s.historyBytes {
		if s.remove(it); s.Keeps() {
			s.unkept++
		}
		return
	}
	for s.kept = append(s.kept, it); s.keptBytes > s.historyBytes; s.kept = s.kept[1:] {
		if first := s.kept[0]; !first.gone {
			s.remove(first)
		}
	}
}

// Heads implements store.Store.
func (s *Store) Heads(ctx context.Context, all bool) iter.Seq2[store.Head, error] {
	return page(ctx, s, func() (heads []store.Head) {
		for _, l := range s.lanes {
			if (all || l.news) && l.claimed+l.behind < l.waiting {
				heads = append(heads, l.head())
			}
			l.news = l.news && all
		}
		return heads
	})
}

// announce makes the next Heads(false) yield l, and signals Changed. It is called for changes that
// the scheduler of the forwarder does not know of.
func (s *Store) announce(l *lane) {
	l.news = true
	s.changed.Set()
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
	s.lanes, s.seen, s.claims, s.log, s.kept = nil, nil, nil, log{}, nil
	return nil
}

// size estimates the memory of a delivery, in bytes, for Config.MaxBytes. Retries do not change this
// size.
func size(d *store.Delivery) int64 {
	return int64(len(d.Body)+len(d.ID)+len(d.MessageID)+len(d.Source)+len(d.User)+len(d.Event)+len(d.Key)) + 512
}
