package filequeue

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/storekit"
)

// A lane has the waiting deliveries of one destination, claimed ones included.
type lane struct {
	name                    string
	fresh, retries, claimed queue
}

func (l *lane) waiting() int { return l.fresh.len + l.retries.len + l.claimed.len }

func (l *lane) queue(retries bool) *queue {
	if retries {
		return &l.retries
	}
	return &l.fresh
}

// head returns when the first unclaimed fresh delivery and the first unclaimed retry are due.
func (l *lane) head() webhook.Head {
	return webhook.Head{Destination: l.name, Fresh: dueOf(l.fresh.first()), Retry: dueOf(l.retries.first())}
}

// dueOf returns when an entry is due, or zero for nil.
func dueOf(e *entry) time.Time {
	if e == nil {
		return time.Time{}
	}
	return e.dueAt()
}

// A claim is the right to settle a delivery. The entry of the delivery is in lane.claimed.
type claim struct {
	point
	id    uint64 // the value of Delivery.Claim
	lane  *lane
	retry bool  // the delivery came from lane.retries
	body  int64 // the length of the body
}

// A where names a queue of the index. The destination is empty for a queue that belongs to no
// lane.
type where struct {
	kind        kind // a state, claimed, kindKeys, or kindSetting for index.notes
	destination string
}

// claimed, as the kind in a where, names a lane's queue of claimed deliveries. No record has this
// kind.
const claimed = kindEnd

// An index is the part of a store that is in memory. The caller of a method holds mu, unless the
// method's comment says otherwise.
type index struct {
	mu        sync.Mutex
	segs      segments
	lanes     map[string]*lane
	news      map[string]struct{} // the destinations that the next Heads(false) yields
	claims    map[uint64]*claim   // by id
	lastClaim uint64              // the latest id; ids are not used again, and 0 is none
	dead      queue
	history   queue
	seen      *storekit.Window
	settings  settings
	keys      queue           // records of kindKeys, by the time of the latest put
	losses    int             // deliveries in records of kindLost
	notes     queue           // records of kindSetting and kindLost
	told      map[uint64]bool // see complain

	watched map[uint64]bool // the deliveries that Erase looks for, by sequence number; nil otherwise
	moved   []spot          // where watched deliveries went since watched was set
}

// A spot is the place of an entry in the index.
type spot struct {
	where
	point
}

// watch notes that the entry e was pushed to the queue w. It does so for watched deliveries only.
func (x *index) watch(w where, e *entry) {
	if x.watched[e.seq] {
		x.moved = append(x.moved, spot{w, e.point()})
	}
}

// visit calls f for each entry. The caller does not hold mu: visit locks mu while it reads up to
// 4,096 entries, and unlocks it while it calls f with them. So visit may miss an entry that changes
// its queue in the meantime, or call f twice for it.
func (x *index) visit(f func(w where, e entry)) {
	const some = 4096
	x.mu.Lock()
	defer x.mu.Unlock()
	var all []entry
	for _, w := range x.queues() {
		for last, more := firstPoint, true; more; more = len(all) == some {
			all = x.queue(w).after(last, some, all[:0])
			x.mu.Unlock()
			for _, e := range all {
				last = e.point()
				f(w, e)
			}
			x.mu.Lock()
		}
	}
}

// queue returns a queue of the index. If the destination has no lane, it returns a new empty queue
// that is not part of the index.
func (x *index) queue(w where) *queue {
	switch w.kind {
	case kindDead:
		return &x.dead
	case kindDelivered:
		return &x.history
	case kindKeys:
		return &x.keys
	case kindSetting:
		return &x.notes
	}
	l := x.lanes[w.destination]
	switch {
	case l == nil:
		return new(queue)
	case w.kind == claimed:
		return &l.claimed
	}
	return l.queue(w.kind == kindRetry)
}

// queues returns the names of all queues.
func (x *index) queues() []where {
	all := []where{{kind: kindDead}, {kind: kindDelivered}, {kind: kindKeys}, {kind: kindSetting}}
	for name := range x.lanes {
		all = append(all, where{kindFresh, name}, where{kindRetry, name}, where{claimed, name})
	}
	return all
}

// waiting returns how many deliveries wait, claimed ones included.
func (x *index) waiting() (n int) {
	for _, l := range x.lanes {
		n += l.waiting()
	}
	return n
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

// claim claims a delivery of lane l. e is its entry, which the caller has removed from its queue.
func (x *index) claim(l *lane, e entry, retry bool) *claim {
	x.lastClaim++
	c := &claim{point: e.point(), id: x.lastClaim, lane: l, retry: retry, body: e.bytes()}
	x.claims[c.id] = c
	l.claimed.push(e)
	x.watch(where{claimed, l.name}, &e)
	return c
}

// unclaim ends a claim. It returns the entry, and the caller adds it to a queue or drops it.
func (x *index) unclaim(c *claim) entry {
	delete(x.claims, c.id)
	e, _ := c.lane.claimed.remove(c.point)
	return e
}

// note adds the entry of a record of kindSetting, kindLost or kindKeys to a queue, and counts the
// bytes of the record as needed.
func (x *index) note(to *queue, e entry) {
	to.push(e)
	x.segs.count(&e, 1)
}

// unnote reverts note for the entry at p.
func (x *index) unnote(from *queue, p point) {
	if e, ok := from.remove(p); ok {
		x.segs.count(&e, -1)
	}
}

// pin returns an entry with its segments pinned. It locks mu itself.
func (x *index) pin(e entry) pinned {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.segs.pin(e)
}

// announce makes the next Heads(false) yield a destination. It is for changes that the scheduler
// did not make itself.
func (x *index) announce(destination string) { x.news[destination] = struct{}{} }

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

func keyOf(d *webhook.Delivery) storekit.Key { return storekit.KeyOf(d.Destination, d.ID) }
