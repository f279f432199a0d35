package natsqueue

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// An index has the waiting deliveries of the partitions of this node in memory. Its mutex also guards
// the partitions and the answers that puts wait for. "The index is locked" means that the caller
// holds mu.
type index struct {
	changed store.Signal // see Changed

	mu        sync.Mutex
	lanes     map[string]*lane
	news      map[string]struct{} // lanes that the next Heads yields
	claims    map[uint64]*entry
	unfit     map[*entry]*store.Delivery // what settlements changed, without the body, of entries whose message is too large to be stored again; see stay
	cacheRoom int64                      // of cacheBytes; see hold
	serial    atomic.Uint64              // the last number given to a claim or record
}

func newIndex() *index {
	return &index{
		changed: store.NewSignal(), lanes: make(map[string]*lane), news: make(map[string]struct{}),
		claims: make(map[uint64]*entry), unfit: make(map[*entry]*store.Delivery), cacheRoom: cacheBytes,
	}
}

// tell makes the next Heads yield the lane, and signals Changed. The index is locked.
func (ix *index) tell(lane string) {
	ix.news[lane] = struct{}{}
	ix.changed.Set()
}

// tellAll makes the next Heads yield all lanes.
func (ix *index) tellAll() {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	for name := range ix.lanes {
		ix.tell(name)
	}
}

// head returns the head of a lane. The index is locked.
func (ix *index) head(name string) store.Head {
	if l := ix.lanes[name]; l != nil && l.p.state == open {
		return l.head()
	}
	return store.Head{Destination: name}
}

// describe fills in e from d. The index is locked.
func (ix *index) describe(e *entry, d *store.Delivery) {
	e.due, e.retry, e.seq = d.Due.UnixMicro(), !d.Expires.IsZero(), d.Seq
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
// An element of entries may be nil. The index is locked.
func (ix *index) hold(entries ...*entry) {
	horizon := time.Now().Add(cacheAhead).UnixMicro()
	for _, e := range entries {
		if e == nil || e.delivery == nil || e.claim != 0 || !e.waits() {
			continue
		}
		ix.uncount(e)
		size := e.delivery.Size() + cacheEntry
		if e.due > horizon || size > ix.cacheRoom-e.lane.cached {
			e.delivery = nil
			continue
		}
		e.cached = uint32(size)
		ix.cacheRoom -= size
		e.lane.cached += size
	}
}

// uncount frees the room that the delivery of e takes, for an entry that is claimed or has ended.
// The index is locked.
func (ix *index) uncount(e *entry) {
	ix.cacheRoom += int64(e.cached)
	e.lane.cached -= int64(e.cached)
	e.cached = 0
}

// claim claims e, and takes it out of its queue. The index is locked.
func (ix *index) claim(e *entry) uint64 {
	e.lane.leave(e)
	ix.uncount(e)
	e.claim = ix.serial.Add(1)
	ix.claims[e.claim] = e
	e.lane.claimed++
	e.lane.p.claimed++
	return e.claim
}

// unclaim ends the claim of e, if it has one. The index is locked.
func (ix *index) unclaim(e *entry) {
	if e.claim != 0 {
		delete(ix.claims, e.claim)
		e.claim, e.write = 0, nil
		e.lane.claimed--
		if e.lane.p.claimed--; e.lane.p.claimed == 0 && e.lane.p.state == draining {
			e.lane.p.set.look.Set()
		}
	}
}

// putBack ends the claim of e and queues e again. The index is locked.
func (ix *index) putBack(e *entry) {
	ix.unclaim(e)
	e.lane.push(e)
	ix.hold(e)
}

// remove removes e from the index. It returns the Due of the entry behind e, or zero if there is
// none. lapsed reports whether e is buried with a Reason that is Lapsed. The index is locked.
func (ix *index) remove(e *entry, lapsed bool) time.Time {
	ix.unclaim(e)
	ix.uncount(e)
	delete(ix.unfit, e)
	e.lane.leave(e)
	if x := e.lane.at(e.seq); x != nil && x.entry == e {
		e.lane.vacate(x)
	}
	e.lane.waiting--
	released := e.lane.part(e, lapsed)
	ix.prune(e.lane)
	e.block.drop(e)
	return released
}

// prune removes a lane that has no deliveries. The index is locked.
func (ix *index) prune(l *lane) {
	if l.waiting == 0 && l.gone == len(l.list) {
		delete(ix.lanes, l.name)
		delete(l.p.lanes, l.name)
	}
}

// putBackAll ends the claims of those entries that still wait, and queues them again.
func (ix *index) putBackAll(entries []*entry) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	for _, e := range entries {
		if e.waits() {
			ix.putBack(e)
		}
	}
}

// next sets the Next of wants. The index is locked.
func (ix *index) next(wants []store.Want) {
	for i := range wants {
		w := &wants[i]
		w.Next = time.Time{}
		if l := ix.lanes[w.Destination]; l != nil && l.p.state == open {
			w.Next = l.queue(w.Retries).due()
		}
	}
}

// pick claims due entries for wants, with about maxBytes of bodies.
func (ix *index) pick(wants []store.Want, maxBytes int64) (picked []*entry) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	at := time.Now().UnixMicro()
	var bytes int64
	for _, w := range wants {
		l := ix.lanes[w.Destination]
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
			ix.claim(e)
			picked = append(picked, e)
		}
	}
	return picked
}
