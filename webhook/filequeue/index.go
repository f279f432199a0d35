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

// A list has the dead letters, or the history.
type list struct {
	queue
	bytes int64 // the sum of the Sizes
}

func (l *list) push(e entry) {
	l.queue.push(e)
	l.bytes += e.bytes()
}

func (l *list) remove(p point) (entry, bool) {
	e, ok := l.queue.remove(p)
	if ok {
		l.bytes -= e.bytes()
	}
	return e, ok
}

// An index is the part of a store that is in memory. Except where they say otherwise, the caller of its
// methods holds mu.
type index struct {
	mu        sync.Mutex
	segs      segments
	lanes     map[string]*lane
	news      map[string]struct{} // the destinations that the next Heads(false) yields
	claims    map[uint64]*claim   // by id
	lastClaim uint64              // the latest id; ids are not used again, and 0 is none
	waiting   int                 // deliveries, claimed ones included
	dead      list
	history   list
	seen      *storekit.Window
	settings  settings
	keys      []remembered
	losses    int             // deliveries in records of kindLost
	notes     queue           // the records of settings, keys and losses
	told      map[uint64]bool // see complain
}

// A remembered is a record of kindKeys.
type remembered struct {
	seq  uint64
	turn uint64 // of the dedup window when its puts were stored
}

// list returns the dead letters, or the history for kindDelivered.
func (x *index) list(k kind) *list {
	if k == kindDelivered {
		return &x.history
	}
	return &x.dead
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

// locate returns the entry at a point, or nil. It looks in the queue of the deliveries in state k, for
// waiting deliveries also among the claims, and for kinds that are no state of a delivery in x.notes.
func (x *index) locate(k kind, destination string, p point) *entry {
	switch {
	case k == kindDead || k == kindDelivered:
		return x.list(k).at(p)
	case !k.state():
		return x.notes.at(p)
	}
	l := x.lanes[destination]
	if l == nil {
		return nil
	}
	if e := l.queue(k == kindRetry).at(p); e != nil {
		return e
	}
	return l.claimed.at(p)
}

// enqueue adds a waiting delivery to the lane of its destination.
func (x *index) enqueue(destination string, e entry, retry bool) *lane {
	l := x.lane(destination)
	l.queue(retry).push(e)
	x.waiting++
	return l
}

// dequeued counts a delivery that was taken from its queue and no longer waits.
func (x *index) dequeued(destination string) {
	x.waiting--
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

// note adds the entry of a record of a setting, of keys or of losses to x.notes.
func (x *index) note(e entry) {
	x.notes.push(e)
	x.segs.count(&e, 1)
}

// unnote removes an entry that note added.
func (x *index) unnote(seq uint64) {
	if e, ok := x.notes.remove(point{0, seq}); ok {
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

// restate gives an entry a new state record, and the result of bytes.
func (x *index) restate(e *entry, seg *segment, state *record, bytes int64) {
	x.segs.count(e, -1)
	e.setState(seg.number, state)
	e.setBytes(bytes)
	x.segs.count(e, 1)
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
func (x *index) announce(l *lane) { x.news[l.name] = struct{}{} }

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
