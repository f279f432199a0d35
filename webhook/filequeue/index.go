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

// A lane is a destination with deliveries that wait.
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

// head returns when the first unclaimed deliveries are due.
func (l *lane) head() webhook.Head {
	return webhook.Head{Destination: l.name, Fresh: dueOf(l.fresh.first()), Retry: dueOf(l.retries.first())}
}

// oldest returns when the first unclaimed delivery is due, or zero.
func (l *lane) oldest() time.Time {
	h := l.head()
	if h.Fresh.IsZero() || !h.Retry.IsZero() && h.Retry.Before(h.Fresh) {
		return h.Retry
	}
	return h.Fresh
}

// dueOf returns when an entry is due, or zero for nil.
func dueOf(e *entry) time.Time {
	if e == nil {
		return time.Time{}
	}
	return e.dueAt()
}

// A claim is the right to settle a delivery, whose entry is in lane.claimed.
type claim struct {
	point
	id    uint64 // what the caller knows it by
	lane  *lane
	retry bool  // it came from the retries
	body  int64 // the length of the body
}

// A where names a queue. The destination is that of a lane, and empty for other queues.
type where struct {
	kind        kind // a state, claimed, kindKeys, or kindSetting for index.notes
	destination string
}

// claimed stands for the deliveries of a lane that are claimed. No record has this kind.
const claimed = kindEnd

// An index is the part of a store that is in memory. Except where they say otherwise, the caller of its
// methods holds mu.
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
	keys      queue           // the records of dedup keys, by the time of the latest put
	losses    int             // deliveries in records of kindLost
	notes     queue           // the records of settings and losses
	told      map[uint64]bool // see complain
}

// queue returns a queue. It is empty, and not part of the index, if there is no lane of the destination.
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

// lane returns the lane of a destination, and makes it if it is missing.
func (x *index) lane(name string) *lane {
	l := x.lanes[name]
	if l == nil {
		l = &lane{name: strings.Clone(name)}
		x.lanes[l.name] = l
	}
	return l
}

// prune removes the lane of a destination if nothing waits there.
func (x *index) prune(destination string) {
	if l := x.lanes[destination]; l != nil && l.waiting() == 0 {
		delete(x.lanes, destination)
	}
}

// claim claims a delivery of a lane that is in no queue.
func (x *index) claim(l *lane, e entry, retry bool) *claim {
	x.lastClaim++
	c := &claim{point: e.point(), id: x.lastClaim, lane: l, retry: retry, body: e.bytes()}
	x.claims[c.id] = c
	l.claimed.push(e)
	return c
}

// unclaim ends a claim. It returns the entry, which is in no queue then.
func (x *index) unclaim(c *claim) entry {
	delete(x.claims, c.id)
	e, _ := c.lane.claimed.remove(c.point)
	return e
}

// note adds the entry of a record of settings, losses or keys to a queue.
func (x *index) note(to *queue, e entry) {
	to.push(e)
	x.segs.count(&e, 1)
}

// unnote removes an entry that note added.
func (x *index) unnote(from *queue, p point) {
	if e, ok := from.remove(p); ok {
		x.segs.count(&e, -1)
	}
}

// noteSegment returns the segment of an entry that note added, or 0 while its commit is in progress.
func (x *index) noteSegment(seq uint64) uint32 {
	if e := x.notes.at(point{0, seq}); e != nil {
		return e.put.seg
	}
	return 0
}

// pinned returns a segment, which the caller unpins, or nil if it was removed. It takes the lock itself.
func (x *index) pinned(n uint32) *segment {
	x.mu.Lock()
	defer x.mu.Unlock()
	g := x.segs[n]
	if g != nil {
		g.pins.Add(1)
	}
	return g
}

// announce makes the next Heads(false) yield a destination that the scheduler did not change itself.
func (x *index) announce(destination string) { x.news[destination] = struct{}{} }

// keyAt returns the Key of a dead letter, or of a delivery of the history. Keys sort as points do.
func keyAt(p point) string { return fmt.Sprintf("%016x%016x", uint64(p.due)^1<<63, p.seq) }

// pointOf returns the point of a Key, or firstPoint if it is none.
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
