package pgqueue

import (
	"container/heap"
	"math"
	"slices"
	"time"
)

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
func (s *Store) lineOf(key lineKey) *line {
	l := s.lines[key]
	if l == nil {
		l = &line{beyond: never, per: chunkItems}
		s.lines[key] = l
	}
	return l
}

func (s *Store) knows(l *line) bool { return l.known == s.epoch+1 }

// report notes that a line has an unclaimed chunk.
func (s *Store) report(key lineKey, due int64, held int) {
	l := s.lineOf(key)
	s.clock++
	l.clock = s.clock
	if due < l.beyond {
		l.beyond, l.per = due, max(1, held)
	}
}

// A look at the database is as of a time when there was this epoch, and this many reports.
type look struct{ epoch, clock uint64 }

func (s *Store) beginLook() look { return look{s.epoch, s.clock} }

// learn notes what a look found to be the first unclaimed chunk of a line.
func (s *Store) learn(l *line, u unclaimed, at look) {
	if u.held == 0 {
		u = unclaimed{never, chunkItems}
	}
	if l.clock <= at.clock || u.due < l.beyond { // else a later report is of an earlier one
		l.beyond, l.per = u.due, u.held
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
func (s *Store) putFree(it *item) {
	it.state, it.claim = free, 0
	heap.Push(&s.lineOf(it.chunk.line).free, it)
}

// hand claims an item, which is in no line, for the caller.
func (s *Store) hand(it *item, now time.Time) uint64 {
	s.serial++
	it.state, it.claim = inHand, s.serial
	s.claimed[it.claim] = it
	it.chunk.inHand++
	it.chunk.used = now
	return it.claim
}

// unhand ends a claim.
func (s *Store) unhand(it *item) {
	delete(s.claimed, it.claim)
	it.chunk.inHand--
	it.claim, it.state = 0, settled
}

// install puts a claimed chunk into memory, with its items. Those that are wanted by who
// has put them are claimed at once.
func (s *Store) install(c *chunk, data []byte, now time.Time, drafted []*fresh) {
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
func (s *Store) forget(c *chunk) {
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
			waits = true
		}
	}
	if !waits {
		return
	}
	l := s.lineOf(c.line)
	l.free = slices.DeleteFunc(l.free, func(it *item) bool { return it.chunk == c })
	heap.Init(&l.free)
}

// takeOut claims an item that is in its line.
func (s *Store) takeOut(it *item) {
	l := s.lineOf(it.chunk.line)
	heap.Remove(&l.free, slices.Index(l.free, it))
	s.hand(it, it.chunk.used)
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
