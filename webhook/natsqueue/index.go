package natsqueue

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// An index is the state of this node in memory: its partitions and their waiting deliveries. "The
// store is locked" means that the caller holds mu.
type index struct {
	*conn
	changed chan struct{}
	look    chan struct{} // makes rule check the owners of partitions

	mu        sync.Mutex
	owned     []*partition // by number; nil for a partition that this node does not own
	lanes     map[string]*lane
	news      map[string]struct{} // lanes that the next Heads yields
	claims    map[uint64]*entry
	unfit     map[*entry]*store.Delivery // what settlements changed, without the body, of entries whose message is too large to be stored again; see stay
	seen      *store.Window
	cacheRoom int64            // of cacheBytes; see hold
	parts     map[uint64]*part // records with puts whose answer is awaited, by serial
	serial    uint64           // the last number given to a claim, record or entry
	until     time.Time        // this node owns its partitions until then
	failed    error            // the error of the latest heartbeat; nil if it was stored
}

func newIndex(c *conn) *index {
	return &index{
		conn: c, changed: make(chan struct{}, 1), look: make(chan struct{}, 1),
		owned: make([]*partition, c.config.Partitions), lanes: make(map[string]*lane), news: make(map[string]struct{}),
		claims: make(map[uint64]*entry), unfit: make(map[*entry]*store.Delivery), parts: make(map[uint64]*part),
		seen: store.NewWindow(c.config.DedupMax, c.config.DedupWindow), cacheRoom: cacheBytes,
	}
}

// lapsed returns an error if the last heartbeat is so old, by the wall clock or by the monotonic
// clock, that other nodes may have taken over the partitions of this node. The store is locked.
func (s *index) lapsed() error {
	now := time.Now()
	if !now.After(s.until) && !now.Round(0).After(s.until.Round(0)) {
		return nil
	}
	if s.failed != nil {
		return fmt.Errorf("natsqueue: lost ownership, the last heartbeat is too old: %w", s.failed)
	}
	return errors.New("natsqueue: lost ownership, the last heartbeat is too old")
}

// signal sends on c, a channel with room for one value, unless a value is already waiting.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
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

// loseAll gives up all partitions of this node in memory.
func (s *index) loseAll() {
	for _, p := range s.mine() {
		s.mu.Lock()
		p.lose()
		s.mu.Unlock()
	}
}

// tell makes the next Heads yield the lane, and signals Changed. The store is locked.
func (s *index) tell(lane string) {
	s.news[lane] = struct{}{}
	signal(s.changed)
}

// head returns the head of a lane. The store is locked.
func (s *index) head(name string) store.Head {
	if l := s.lanes[name]; l != nil && l.p.state == open {
		return l.head()
	}
	return store.Head{Destination: name}
}

// describe fills in e from d. The store is locked.
func (s *index) describe(e *entry, d *store.Delivery) {
	s.serial++
	e.due, e.retry, e.order = d.Due.UnixMicro(), !d.Expires.IsZero(), s.serial
	e.size, e.user, e.delivery = uint32(len(d.Body)), hash(d.User), d
}

const (
	// cacheBytes bounds, approximately, the memory for deliveries that are not claimed.
	cacheBytes = 32 << 20
	// cacheAhead is how long before its due time a delivery may be kept in memory.
	cacheAhead = 10 * time.Second
	// cacheEntry is about how many bytes a delivery in memory takes in addition to Delivery.Size.
	cacheEntry = 512
)

// hold counts the deliveries of unclaimed entries that are in memory. A delivery leaves memory if it
// is not due soon, or if there is no room. A lane may take half of the room that the others leave.
// An element of entries may be nil. The store is locked.
func (s *index) hold(entries ...*entry) {
	horizon := time.Now().Add(cacheAhead).UnixMicro()
	for _, e := range entries {
		if e == nil || e.delivery == nil || e.claim != 0 || !e.waits() {
			continue
		}
		s.uncount(e)
		size := e.delivery.Size() + cacheEntry
		if e.due > horizon || size > s.cacheRoom-e.lane.cached {
			e.delivery = nil
			continue
		}
		e.cached = uint32(size)
		s.cacheRoom -= size
		e.lane.cached += size
	}
}

// uncount frees the room that the delivery of e takes, for an entry that is claimed or has ended.
// The store is locked.
func (s *index) uncount(e *entry) {
	s.cacheRoom += int64(e.cached)
	e.lane.cached -= int64(e.cached)
	e.cached = 0
}

// claim claims e, and takes it out of its queue. The store is locked.
func (s *index) claim(e *entry) uint64 {
	e.lane.leave(e)
	s.uncount(e)
	s.serial++
	e.claim = s.serial
	s.claims[e.claim] = e
	e.lane.claimed++
	e.lane.p.claimed++
	return e.claim
}

// unclaim ends the claim of e, if it has one. The store is locked.
func (s *index) unclaim(e *entry) {
	if e.claim != 0 {
		delete(s.claims, e.claim)
		e.claim, e.write = 0, nil
		e.lane.claimed--
		if e.lane.p.claimed--; e.lane.p.claimed == 0 && e.lane.p.state == draining {
			signal(s.look)
		}
	}
}

// putBack ends the claim of e and queues e again. The store is locked.
func (s *index) putBack(e *entry) {
	s.unclaim(e)
	e.lane.push(e)
	s.hold(e)
}

// remove removes e from the index. The store is locked.
func (s *index) remove(e *entry) {
	s.unclaim(e)
	s.uncount(e)
	delete(s.unfit, e)
	e.lane.leave(e)
	if e.lane.waiting--; e.lane.waiting == 0 {
		delete(s.lanes, e.lane.name)
	}
	e.block.drop(e)
}

// pick claims due entries for wants, with about maxBytes of bodies. The store is locked.
func (s *index) pick(wants []store.Want, maxBytes int64) (picked []*entry) {
	at := time.Now().UnixMicro()
	var bytes int64
	for _, w := range wants {
		l := s.lanes[w.Destination]
		if l == nil || l.p.state != open {
			continue
		}
		q := l.queue(w.Retries)
		for range w.Max {
			if len(*q) == 0 || (*q)[0].due > at {
				break
			}
			e := (*q)[0]
			if bytes += int64(e.size); bytes > maxBytes && len(picked) > 0 {
				return picked
			}
			s.claim(e)
			picked = append(picked, e)
		}
	}
	return picked
}
