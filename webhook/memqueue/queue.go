package memqueue

import (
	"iter"
	"time"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/storekit"
)

// An item is a delivery that is stored: in its queue, or claimed.
type item struct {
	webhook.Delivery
	lane *lane // nil once it is gone

	left, right *item // its neighbours in lane.items

	at    int64 // Due in microseconds
	seq   uint64
	next  *item // in the list, or a child in the heap
	child *item // the other child in the heap
	key   storekit.Key
}

// size returns the bytes that a delivery counts for. They do not change while it is stored.
func size(d *webhook.Delivery) int64 {
	return int64(len(d.Body)+len(d.ID)+len(d.MessageID)+len(d.Source)+len(d.User)+len(d.Event)) + overhead
}

// before reports whether it comes before another in a queue.
func (it *item) before(other *item) bool {
	return it.at < other.at || it.at == other.at && it.seq < other.seq
}

// due returns when an item is due, zero for nil.
func (it *item) due() time.Time {
	if it == nil {
		return time.Time{}
	}
	return time.UnixMicro(it.at).UTC()
}

// queue returns the queue that an item belongs in.
func (it *item) queue() *queue {
	if it.Expires.IsZero() {
		return &it.lane.fresh
	}
	return &it.lane.retries
}

// A lane is a destination that something waits for.
type lane struct {
	name             string
	items            *item // the latest, linked to all others, the claimed ones too
	waiting, claimed int   // the claimed ones are among those that wait
	fresh, retries   queue // of what is not claimed
}

// all yields the items, in no order. The loop may drop the item that it is at.
func (l *lane) all() iter.Seq[*item] {
	return func(yield func(*item) bool) {
		for it := l.items; it != nil; {
			right := it.right
			if !yield(it) {
				return
			}
			it = right
		}
	}
}

// change calls each with the items that match and are not claimed, and makes the queues anew if
// it reports a change of any. It returns how many were changed, and how many are claimed.
func (l *lane) change(match func(*webhook.Delivery) bool, each func(*item) bool) (n, claimed int) {
	for it := range l.all() {
		switch {
		case !match(&it.Delivery):
		case it.Claim != 0:
			claimed++
		case each(it):
			n++
		}
	}
	if n == 0 {
		return 0, claimed
	}
	l.fresh, l.retries = queue{}, queue{}
	for it := range l.all() {
		if it.next, it.child = nil, nil; it.Claim == 0 {
			it.queue().push(it)
		}
	}
	return n, claimed
}

// A place is where an item stood in the order of its destination.
type place struct {
	*item
	at  int64
	seq uint64
}

// places returns where the items of a lane stand, none for nil, in no order.
func (l *lane) places() (all []place) {
	if l != nil {
		for it := range l.all() {
			all = append(all, place{it, it.at, it.seq})
		}
	}
	return all
}

// head returns when the first items that are not claimed are due.
func (l *lane) head() webhook.Head {
	return webhook.Head{Destination: l.name, Fresh: l.fresh.first().due(), Retry: l.retries.first().due()}
}

// oldest returns when the first item that is not claimed is due, zero if there is none.
func (l *lane) oldest() time.Time {
	h := l.head()
	if h.Fresh.IsZero() || !h.Retry.IsZero() && h.Retry.Before(h.Fresh) {
		return h.Retry
	}
	return h.Fresh
}

// A queue holds items in order. Those that arrive in order make a list; each of the
// others goes into a skew heap. The links are in the items, so that a queue costs no
// memory of its own.
type queue struct {
	head, tail *item
	heap       *item
}

func (q *queue) push(it *item) {
	switch {
	case q.head == nil:
		q.head, q.tail = it, it
	case q.tail.before(it):
		q.tail.next, q.tail = it, it
	default:
		q.heap = meld(q.heap, it)
	}
}

// first returns the first item, nil if there is none.
func (q *queue) first() *item {
	if q.head == nil || q.heap != nil && q.heap.before(q.head) {
		return q.heap
	}
	return q.head
}

// pop takes the first item out.
func (q *queue) pop(it *item) {
	if it == q.head {
		q.head = it.next
	} else {
		q.heap = meld(it.next, it.child)
	}
	it.next, it.child = nil, nil
}

// meld makes one heap of two. It walks down one side of each and swaps the children on its
// way: that keeps the walks short, log n on average over all.
func meld(a, b *item) *item {
	var top *item
	for at := &top; ; at = &(*at).child {
		if a == nil || b != nil && b.before(a) {
			a, b = b, a
		}
		if *at = a; b == nil {
			return top
		}
		rest := a.next
		a.next = a.child
		a = rest
	}
}

// claims are the items that are handed out. A claim is a serial number, and the slot of its item in
// the low bits.
type claims struct {
	slots  []*item  // nil where a slot is free
	free   []uint32 // the free slots
	serial uint64   // of the latest claim, in the bits above slotBits
}

// slotBits is how many bits of a claim are its slot. The bits above are its serial number:
// at 200,000 claims a second, four days pass before one comes again.
const slotBits = 28

func (c *claims) len() int { return len(c.slots) - len(c.free) }

// add claims an item that is in no queue, and returns the claim.
func (c *claims) add(it *item) uint64 {
	if len(c.free) == 0 {
		c.free = append(c.free, uint32(len(c.slots)))
		c.slots = append(c.slots, nil)
	}
	last := len(c.free) - 1
	slot := c.free[last]
	c.free = c.free[:last]
	if c.serial += 1 << slotBits; c.serial == 0 { // no claim is 0
		c.serial = 1 << slotBits
	}
	c.slots[slot] = it
	it.Claim = c.serial | uint64(slot)
	it.lane.claimed++
	return it.Claim
}

// end ends a claim and returns its item, nil if the claim does not hold.
func (c *claims) end(claim uint64) *item {
	slot := claim & (1<<slotBits - 1)
	if slot >= uint64(len(c.slots)) {
		return nil
	}
	it := c.slots[slot]
	if it == nil || it.Claim != claim {
		return nil
	}
	c.slots[slot] = nil
	c.free = append(c.free, uint32(slot))
	it.Claim = 0
	it.lane.claimed--
	return it
}
