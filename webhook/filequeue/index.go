package filequeue

import (
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/hookferry/analytics/webhook/store"
)

// An index is the part of a store that is in memory. The caller of a method holds mu, unless the
// method's comment says otherwise.
type index struct {
	mu        sync.Mutex
	segs      segments
	lanes     map[string]*lane
	news      map[string]struct{} // the destinations that the next Heads(false) yields
	changed   signal              // has a value if there are news
	claims    map[uint64]*claim   // by id
	lastClaim uint64              // the latest id; ids are not used again, and 0 is none
	dead      queue
	history   queue
	seen      *store.Window
	settings  map[string]*setting // by name
	losses    int                 // lost deliveries, since the folder was created
	tidy      signal              // the janitor may have work

	watched map[uint64]bool // the deliveries that Erase looks for, by sequence number; nil otherwise
	moved   []spot          // where watched deliveries went since watched was set
}

// A lane has the waiting deliveries of one destination.
type lane struct {
	name           string
	fresh, retries queue
	claimed        int // those in index.claims, and in no queue
}

func (l *lane) waiting() int { return l.fresh.len + l.retries.len + l.claimed }

func (l *lane) queue(retries bool) *queue {
	if retries {
		return &l.retries
	}
	return &l.fresh
}

// head returns when the first unclaimed fresh delivery and the first unclaimed retry are due.
func (l *lane) head() store.Head {
	return store.Head{Destination: l.name, Fresh: l.fresh.first().dueAt(), Retry: l.retries.first().dueAt()}
}

// A claim is the right to settle a delivery.
type claim struct {
	entry
	id    uint64 // the value of Delivery.Claim
	lane  *lane
	retry bool // the delivery came from lane.retries

	settled bool // the commit that ends the claim is in progress
}

// claim claims a delivery of lane l. e is its entry, which is in no queue.
func (x *index) claim(l *lane, e entry, retry bool) *claim {
	x.lastClaim++
	c := &claim{entry: e, id: x.lastClaim, lane: l, retry: retry}
	x.claims[c.id] = c
	l.claimed++
	return c
}

// unclaim ends a claim. The caller adds its entry to a queue or drops it.
func (x *index) unclaim(c *claim) {
	delete(x.claims, c.id)
	c.lane.claimed--
}

// claimed returns the claims by the sequence numbers of their deliveries.
func (x *index) claimed() map[uint64]*claim {
	all := make(map[uint64]*claim, len(x.claims))
	for _, c := range x.claims {
		all[c.seq] = c
	}
	return all
}

// A where names a queue of the index: that of a state. The destination matters only for waiting
// deliveries.
type where struct {
	kind        kind
	destination string
}

// A spot is the place of an entry in the index.
type spot struct {
	where
	point
}

// queue returns a queue of the index. If the destination has no lane, it returns a new empty queue
// that is not part of the index.
func (x *index) queue(w where) *queue {
	switch w.kind {
	case kindDead:
		return &x.dead
	case kindDelivered:
		return &x.history
	}
	if l := x.lanes[w.destination]; l != nil {
		return l.queue(w.kind == kindRetry)
	}
	return new(queue)
}

// push adds an entry to a queue, and creates a missing lane.
func (x *index) push(w where, e entry) {
	if w.kind == kindFresh || w.kind == kindRetry {
		x.lane(w.destination)
	}
	x.queue(w).push(e)
	if x.watched[e.seq] {
		x.moved = append(x.moved, spot{w, e.point()})
	}
	if w.kind == kindDelivered {
		x.tidy.give()
	}
}

// lane returns the lane of a destination. It creates a missing lane.
func (x *index) lane(name string) *lane {
	l := x.lanes[name]
	if l == nil {
		l = &lane{name: strings.Clone(name)}
		x.lanes[l.name] = l
	}
	return l
}

// prune removes the lane of a destination if no delivery waits there, claimed or not.
func (x *index) prune(destination string) {
	if l := x.lanes[destination]; l != nil && l.waiting() == 0 {
		delete(x.lanes, destination)
	}
}

// visit calls f for each entry in a queue. The caller does not hold mu: visit locks mu while it
// reads up to 4,096 entries, and unlocks it while it calls f with them. So visit may miss an entry
// that changes its queue in the meantime, or call f twice for it.
func (x *index) visit(f func(w where, e entry)) {
	const some = 4096
	x.mu.Lock()
	defer x.mu.Unlock()
	all := []where{{kind: kindDead}, {kind: kindDelivered}}
	for name := range x.lanes {
		all = append(all, where{kindFresh, name}, where{kindRetry, name})
	}
	for _, w := range all {
		for last, more := firstPoint, true; more; {
			entries := x.queue(w).after(last, some)
			more = len(entries) == some
			x.mu.Unlock()
			for _, e := range entries {
				last = e.point()
				f(w, e)
			}
			x.mu.Lock()
		}
	}
}

// waiting returns how many deliveries wait, claimed ones included.
func (x *index) waiting() (n int) {
	for _, l := range x.lanes {
		n += l.waiting()
	}
	return n
}

// count adds the bytes of an entry's records to the needed bytes of their segments. If by is -1, it
// subtracts them.
func (x *index) count(e *entry, by int64) {
	add := func(seg uint32, bytes int64) {
		g := x.segs[seg]
		if g.live += by * bytes; g.sealed && g.live == 0 {
			x.tidy.give()
		}
	}
	add(e.put.seg, recordSize(int(e.length)))
	if e.units > 0 {
		add(e.state.seg, 8*int64(e.units))
	}
}

// announce makes the next Heads(false) yield a destination. It is for changes that the scheduler
// did not make itself.
func (x *index) announce(destination string) {
	x.news[destination] = struct{}{}
	x.changed.give()
}

// keyAt returns the Key of a delivery at a point. Keys sort in the order of points.
func keyAt(p point) string { return fmt.Sprintf("%016x%016x", uint64(p.due)^1<<63, p.seq) }

// pointOf returns the point that a Key encodes, or firstPoint if the Key is malformed.
func pointOf(key string) point {
	if len(key) != 32 {
		return firstPoint
	}
	due, err1 := strconv.ParseUint(key[:16], 16, 64)
	seq, err2 := strconv.ParseUint(key[16:], 16, 64)
	if p := (point{int64(due ^ 1<<63), seq}); err1 == nil && err2 == nil && keyAt(p) == key {
		return p
	}
	return firstPoint
}
