package pgqueue

import (
	"container/heap"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/hookferry/analytics/webhook"
)

// A memory is what this node knows of the store: the chunks that it has claimed, and which
// queues have others.
type memory struct {
	*database
	changed chan struct{}
	sought  chan struct{} // others have told that something is unclaimed, and not what

	mu      sync.Mutex
	node    int64
	sent    time.Time     // when the latest heartbeat was sent that was stored
	offset  time.Duration // what the database's clock is ahead
	lastErr error         // of the latest heartbeat
	lines   map[lineKey]*line
	epoch   uint64 // lines of an earlier one may not know what others have changed
	clock   uint64 // counts reports to lines
	chunks  map[chunkKey]*chunk
	cached  int64            // bytes of the chunks
	claimed map[uint64]*item // by claim
	serial  uint64           // of the latest claim
	news    map[string]bool  // destinations that others have changed
	allNew  bool             // others have changed any
	looked  time.Duration    // how long the latest look at all heads took
}

// A lineKey names a queue of the store: the fresh deliveries of a destination, or its
// retries.
type lineKey struct {
	destination string
	retries     bool
}

// A line is what this node knows of a queue of the store: the deliveries that it has
// claimed by chunks and not handed out, and when the first chunk is due that is not claimed.
type line struct {
	free itemHeap
	// beyond is when the first unclaimed chunk is due, never if there is none. It may be too
	// early, and is right only if known is the epoch of the Store.
	beyond int64
	known  uint64
	per    int    // how many deliveries that chunk has, as far as is known
	clock  uint64 // of the latest report
}

const never = math.MaxInt64

// lineOf returns the line with this key. The store is locked, as for all functions here.
func (s *memory) lineOf(key lineKey) *line {
	l := s.lines[key]
	if l == nil {
		l = &line{beyond: never, per: chunkItems}
		s.lines[key] = l
	}
	return l
}

func (s *memory) knows(l *line) bool { return l.known == s.epoch+1 }

// report notes that a line has an unclaimed chunk.
func (s *memory) report(key lineKey, due int64, held int) {
	l := s.lineOf(key)
	s.clock++
	l.clock = s.clock
	if due < l.beyond {
		l.beyond, l.per = due, max(1, held)
	}
}

// A look at the database is as of a time when there was this epoch, and this many reports.
type look struct{ epoch, clock uint64 }

func (s *memory) beginLook() look { return look{s.epoch, s.clock} }

// learn notes what a look found to be the first unclaimed chunk of a line.
func (s *memory) learn(l *line, h head, at look) {
	if h.held == 0 {
		h.due, h.held = never, chunkItems
	}
	if l.clock <= at.clock || h.due < l.beyond { // else a later report is of an earlier one
		l.beyond, l.per = h.due, h.held
	}
	l.known = max(l.known, at.epoch+1)
}

// first returns the first delivery that is in memory and not handed out, or nil.
func (l *line) first() *item {
	if len(l.free) == 0 {
		return nil
	}
	return l.free[0]
}

// next returns when the first delivery that is not handed out is due, zero if there is none.
func (l *line) next() time.Time {
	at := l.beyond
	if it := l.first(); it != nil {
		at = min(at, it.due)
	}
	return timeOf(at)
}

func timeOf(at int64) time.Time {
	if at == never {
		return time.Time{}
	}
	return time.UnixMicro(at).UTC()
}

// put puts an item back into its line.
func (s *memory) putFree(it *item) {
	it.state, it.claim = free, 0
	heap.Push(&s.lineOf(it.chunk.line).free, it)
}

// hand claims an item, which is in no line, for the caller.
func (s *memory) hand(it *item, now time.Time) uint64 {
	s.serial++
	it.state, it.claim = inHand, s.serial
	s.claimed[it.claim] = it
	it.chunk.inHand++
	it.chunk.used = now
	return it.claim
}

// unhand ends a claim.
func (s *memory) unhand(it *item) {
	delete(s.claimed, it.claim)
	it.chunk.inHand--
	it.claim, it.state = 0, settled
}

// install puts a claimed chunk into memory, with its items. Those that are wanted by who
// has put them are claimed at once.
func (s *memory) install(c *chunk, data []byte, now time.Time, drafted []*fresh) {
	var err error
	if c.items, c.n, err = parse(data, c.done); err != nil || len(c.items) != c.held {
		c.broken = true
		s.config.Logger.Error("pgqueue: a chunk of deliveries is damaged; what cannot be read stays in the table until somebody deletes it",
			"shelf", c.key.shelf, "chunk", c.key.id, "destination", c.line.destination, "error", err)
	}
	c.used = now
	c.size = int64(len(data) + c.n*itemBytes)
	s.chunks[c.key] = c
	s.cached += c.size
	for i := range c.items {
		it := &c.items[i]
		it.chunk = c
		if drafted != nil {
			if f := drafted[it.index]; f.keep && !f.put.gone {
				f.claim = s.hand(it, now)
				continue
			}
		}
		s.putFree(it)
	}
}

// forget takes a chunk out of memory, with its claims.
func (s *memory) forget(c *chunk) {
	c.over = true
	if s.chunks[c.key] == c {
		delete(s.chunks, c.key)
		s.cached -= c.size
	}
	waits := false
	for i := range c.items {
		switch it := &c.items[i]; it.state {
		case inHand:
			s.unhand(it)
		case free:
			it.state, waits = settled, true
		}
	}
	if waits {
		s.lineOf(c.line).tidy()
	}
}

// tidy takes items that are not free out of a line.
func (l *line) tidy() {
	l.free = slices.DeleteFunc(l.free, func(it *item) bool { return it.state != free })
	heap.Init(&l.free)
}

// An itemHeap has the first item of a line at its top.
type itemHeap []*item

func (h itemHeap) Len() int           { return len(h) }
func (h itemHeap) Less(i, j int) bool { return h[i].before(h[j]) }
func (h itemHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *itemHeap) Push(x any)        { *h = append(*h, x.(*item)) }

func (h *itemHeap) Pop() any {
	last := len(*h) - 1
	it := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return it
}

// damaged leaves out an item that cannot be read.
func (s *memory) damaged(it *item, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if it.state == inHand {
		s.unhand(it)
	}
	it.chunk.broken = true
	s.config.Logger.Error("pgqueue: a delivery is damaged; it stays in the table until somebody deletes its chunk",
		"shelf", it.chunk.key.shelf, "chunk", it.chunk.key.id, "index", it.index, "destination", it.chunk.line.destination, "error", err)
}

var errEnded = errors.New("the claims of this node have ended: its heartbeats were too late")

// expired returns an error once others may take this node for dead, by the wall clock or the
// monotonic one. The store is locked.
func (s *memory) expired() error {
	now, trusted := time.Now(), s.config.trusted()
	if now.Sub(s.sent) <= trusted && now.Round(0).Sub(s.sent.Round(0)) <= trusted {
		return nil
	}
	if s.lastErr != nil {
		return fmt.Errorf("claims have expired, no heartbeat was stored in time: %w", s.lastErr)
	}
	return errors.New("claims have expired, no heartbeat was stored in time")
}

func (s *memory) nodeNow() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.node
}

// Now implements webhook.Store.
func (s *memory) Now() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().Add(s.offset).UTC().Truncate(time.Microsecond)
}

// head returns the head of a destination. The store is locked.
func (s *memory) head(name string) webhook.Head {
	h := webhook.Head{Destination: name}
	if l := s.lines[lineKey{name, false}]; l != nil {
		h.Fresh = l.next()
	}
	if l := s.lines[lineKey{name, true}]; l != nil {
		h.Retry = l.next()
	}
	return h
}

// Changed implements webhook.Store.
func (s *memory) Changed() <-chan struct{} { return s.changed }

func (s *memory) signal() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// heard notes that others have changed these destinations.
func (s *memory) heard(names iter.Seq[string]) {
	s.mu.Lock()
	for name := range names {
		s.news[name] = true
		for _, retries := range []bool{false, true} {
			if l := s.lines[lineKey{name, retries}]; l != nil {
				s.clock++
				l.clock, l.known = s.clock, 0
			}
		}
	}
	s.mu.Unlock()
	s.signal()
}

// heardAny notes that others may have changed any destination.
func (s *memory) heardAny() {
	s.mu.Lock()
	s.allNew = true
	s.epoch++
	s.mu.Unlock()
	s.signal()
}

// restOf returns the heads of what is in memory alone, at the end of a look at all destinations.
func (s *memory) restOf(found map[string]bool, at look, began time.Time) (hs []webhook.Head) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, l := range s.lines {
		if found[key.destination] {
			continue
		}
		if s.learn(l, head{}, at); len(l.free) == 0 && l.beyond == never {
			delete(s.lines, key)
			continue
		}
		found[key.destination] = true
		hs = append(hs, s.head(key.destination))
	}
	s.looked = time.Since(began)
	return hs
}

// seek has look look for all that is unclaimed.
func (s *memory) seek() {
	select {
	case s.sought <- struct{}{}:
	default:
	}
}
