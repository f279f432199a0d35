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

// A lane is a destination that something waits for.
type lane struct {
	name           string
	fresh, retries queue
	claimed        int
}

func (l *lane) waiting() int { return l.fresh.len + l.retries.len + l.claimed }

func (l *lane) queue(retries bool) *queue {
	if retries {
		return &l.retries
	}
	return &l.fresh
}

// oldest returns when the first entry is due that is not claimed, zero if there is none.
func (l *lane) oldest() time.Time {
	a, b := l.fresh.first(), l.retries.first()
	if a == nil || b != nil && b.due < a.due {
		a = b
	}
	return dueOf(a)
}

func dueOf(e *entry) time.Time {
	if e == nil {
		return time.Time{}
	}
	return e.dueAt()
}

// A remembered is a record of kindKeys.
type remembered struct {
	entry
	turn uint64 // of the dedup window when they were written
}

// entryOf returns the entry of a record that stands alone.
func (s *summary) entryOf(seg uint32) entry {
	return entry{seq: s.seq, put: place{seg, s.off}, size: s.size}
}

// An index is what memory has of the store. Its methods are called with its lock, but for those that
// say otherwise.
type index struct {
	mu       sync.Mutex
	segs     segments
	lanes    map[string]*lane
	news     map[string]struct{} // the destinations that Heads(false) is to yield
	claims   claims
	waiting  int
	dead     listed
	history  listed
	seen     *storekit.Window
	keys     []remembered
	lost     []entry // records of kindLost
	losses   int     // that they list
	settings settings
	unread   []postponed // in the order of their times
}

// A listed is a queue with the sum of the Sizes.
type listed struct {
	queue
	bytes int64
}

func (l *listed) push(e entry) {
	l.queue.push(e)
	l.bytes += e.bytes()
}

func (l *listed) remove(p point) (entry, bool) {
	e, ok := l.queue.remove(p)
	if ok {
		l.bytes -= e.bytes()
	}
	return e, ok
}

// restate notes that the state of an entry is in another record now. bytes is what the entry is to
// return for its bytes.
func (x *index) restate(e *entry, seg *segment, state *summary, bytes int64) {
	x.segs.count(e, -1)
	e.setState(seg.number, state)
	e.setBytes(bytes)
	x.segs.count(e, 1)
}

// list returns where dead letters are, or what is in the history.
func (x *index) list(k kind) *listed {
	if k == kindDelivered {
		return &x.history
	}
	return &x.dead
}

func (x *index) lane(name string) *lane {
	l := x.lanes[name]
	if l == nil {
		l = &lane{name: strings.Clone(name)}
		x.lanes[l.name] = l
	}
	return l
}

// enqueue adds an entry that waits.
func (x *index) enqueue(l *lane, e entry, retry bool) {
	l.queue(retry).push(e)
	x.waiting++
}

// dequeue is the opposite of enqueue, or of claims.add, where the entry is not in its
// queue any more.
func (x *index) dequeue(l *lane) {
	if x.waiting--; l.waiting() == 0 {
		delete(x.lanes, l.name)
	}
}

// stored returns the bytes of all that is needed.
func (x *index) stored() (n int64) {
	for _, g := range x.segs {
		n += g.live
	}
	return n
}

// pinned returns a segment, which the caller unpins, nil if it is gone. It takes the lock itself.
func (x *index) pinned(n uint32) *segment {
	x.mu.Lock()
	defer x.mu.Unlock()
	g := x.segs[n]
	if g != nil {
		g.pins.Add(1)
	}
	return g
}

// tell has Heads yield a destination that others than the scheduler have changed.
func (x *index) tell(l *lane) { x.news[l.name] = struct{}{} }

func (x *index) head(name string) webhook.Head {
	h := webhook.Head{Destination: name}
	if l := x.lanes[name]; l != nil {
		h.Fresh, h.Retry = dueOf(l.fresh.first()), dueOf(l.retries.first())
	}
	return h
}

// keyAt returns the Key of a dead letter, or of one in the history. Keys sort as the points do.
func keyAt(p point) string { return fmt.Sprintf("%016x%016x", uint64(p.due)^1<<63, p.seq) }

// pointOf is the opposite of keyAt. A key that is none is at the beginning.
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
