package natsqueue

import (
	"container/heap"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/storekit"
)

// An index is what this node has in memory: the partitions that it owns, and what waits in
// them. "The store is locked" means that mu is.
type index struct {
	*conn
	changed chan struct{}
	look    chan struct{} // asks for a look at who owns what

	mu     sync.Mutex
	owned  []*partition // by number, nil for those of others
	lanes  map[string]*lane
	news   map[string]struct{} // lanes that Heads is to yield
	claims map[uint64]*entry
	seen   *storekit.Window
	cache  cache
	parts  map[uint64]*part // puts whose answer is awaited
	serial uint64           // of the latest claim, part, record and entry
	until  time.Time        // what is owned is owned until then
	failed error            // of the latest heartbeat
}

func newIndex(c *conn) *index {
	return &index{
		conn: c, changed: make(chan struct{}, 1), look: make(chan struct{}, 1),
		owned: make([]*partition, c.config.Partitions), lanes: make(map[string]*lane), news: make(map[string]struct{}),
		claims: make(map[uint64]*entry), parts: make(map[uint64]*part),
		seen: storekit.NewWindow(c.config.DedupMax, c.config.DedupWindow), cache: cache{limit: c.config.CacheBytes},
	}
}

// lapsed returns an error if others may have taken over what this node owns, by the clock on the
// wall or the monotonic one. The store is locked.
func (s *index) lapsed() error {
	now := time.Now()
	if !now.After(s.until) && !now.Round(0).After(s.until.Round(0)) {
		return nil
	}
	if s.failed != nil {
		return fmt.Errorf("natsqueue: ownership lapsed, the last heartbeat is too old: %w", s.failed)
	}
	return errors.New("natsqueue: ownership lapsed, the last heartbeat is too old")
}

// govern asks for a look at who owns what.
func (s *index) govern() {
	select {
	case s.look <- struct{}{}:
	default:
	}
}

// mine returns the partitions that this node owns.
func (s *index) mine() (all []*partition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.owned {
		if p != nil {
			all = append(all, p)
		}
	}
	return all
}

// tell has Heads yield a lane. The store is locked.
func (s *index) tell(lane string) {
	s.news[lane] = struct{}{}
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// head returns the head of a lane. The store is locked.
func (s *index) head(name string) webhook.Head {
	h := webhook.Head{Destination: name}
	if l := s.lanes[name]; l != nil && l.p.open() {
		h.Fresh, h.Retry = l.queues[0].due(), l.queues[1].due()
	}
	return h
}

// fill has e tell of d. The store is locked.
func (s *index) fill(e *entry, d *webhook.Delivery) {
	s.serial++
	e.due, e.retry, e.order = d.Due.UnixMicro(), !d.Expires.IsZero(), s.serial
	e.size, e.user, e.delivery = uint32(len(d.Body)), hash(d.User), d
}

// claim gives e, which is in no queue, a claim. The store is locked.
func (s *index) claim(e *entry) uint64 {
	s.serial++
	e.claim = s.serial
	s.claims[e.claim] = e
	e.lane.claimed++
	s.cache.leave(e)
	return e.claim
}

// unclaim ends the claim of e, if it has one. The store is locked.
func (s *index) unclaim(e *entry) {
	if e.claim != 0 {
		delete(s.claims, e.claim)
		e.claim = 0
		e.lane.claimed--
	}
}

// putBack ends the claim of e, which waits again. The store is locked.
func (s *index) putBack(e *entry) {
	s.unclaim(e)
	e.lane.push(e)
	if e.delivery != nil {
		s.cache.add(e)
	}
}

// remove ends e, which does not wait any more. The store is locked.
func (s *index) remove(e *entry) {
	s.leave(e)
	e.block.drop(e)
}

// leave takes e out of its lane. The store is locked.
func (s *index) leave(e *entry) {
	s.cache.leave(e)
	s.unclaim(e)
	e.gone = true
	if l := e.lane; l != nil {
		if l.waiting--; l.waiting == 0 {
			delete(s.lanes, l.name)
		}
	}
}

// pick claims what wants ask for. The store is locked.
func (s *index) pick(wants []webhook.Want, maxBytes int64) (picked []*entry) {
	at := time.Now().UnixMicro()
	var bytes int64
	for _, w := range wants {
		l := s.lanes[w.Destination]
		if l == nil || !l.p.open() {
			continue
		}
		q := l.queue(w.Retries)
		for n := 0; n < w.Max; n++ {
			e := q.first()
			if e == nil || e.due > at {
				break
			}
			if bytes += int64(e.size); bytes > maxBytes && len(picked) > 0 {
				return picked
			}
			heap.Pop(q)
			s.claim(e)
			picked = append(picked, e)
		}
	}
	return picked
}

// answer tells the node that put a chunk what of it is duplicate. The store is locked.
func (s *index) answer(c *chunk, dups []byte) {
	switch c.node {
	case "":
	case s.id:
		s.answered(c.number, dups)
	default:
		s.nc.Publish(s.config.ask("put."+c.node), putAnswer(c.number, dups))
	}
}

// answered takes the answer for a part: a bit for each item that is a duplicate. The store is locked.
func (s *index) answered(number uint64, dups []byte) {
	x := s.parts[number]
	if x == nil {
		return
	}
	delete(s.parts, number)
	for i, it := range x.items {
		p := it.put
		if p == nil || i/8 >= len(dups) {
			continue
		}
		it.put = nil
		it.Stored = it.Stored || dups[i/8]&(1<<(i%8)) == 0
		if p.left--; p.left == 0 {
			close(p.done)
		}
	}
}
