package memqueue

import (
	"iter"
	"slices"
	"time"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/storekit"
)

// An item is a delivery that is stored: in its queue, or claimed.
type item struct {
	webhook.Delivery
	lane  *lane
	at    int64 // Due in microseconds
	seq   uint64
	next  *item // in the list, or the next sibling in the heap
	child *item // in the heap
	key   storekit.Key
	known bool // is stored without a look at what was put before
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

// update copies from d what both a Retry and a Bury change.
func (it *item) update(d *webhook.Delivery) {
	it.Tries, it.Closed, it.Attempts = d.Tries, exactly(d.Closed), exactly(d.Attempts)
}

// A lane is a destination that something waits for.
type lane struct {
	name             string
	fresh, retries   queue
	waiting, claimed int // the claimed ones are among those that wait
}

// oldest returns when the first item that is not claimed is due, zero if there is none.
func (l *lane) oldest() time.Time {
	a, b := l.fresh.first(), l.retries.first()
	if a == nil || b != nil && b.before(a) {
		return b.due()
	}
	return a.due()
}

// A queue holds items in order. Those that arrive in order make a list; each of the
// others goes into a pairing heap. The links are in the items, so that a queue costs no
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
func (q *queue) pop() {
	it := q.first()
	if it == q.head {
		if q.head = it.next; q.head == nil {
			q.tail = nil
		}
	} else {
		q.heap = meldAll(it.child)
	}
	it.next, it.child = nil, nil
}

// meld makes one heap of two.
func meld(a, b *item) *item {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	case b.before(a):
		a, b = b, a
	}
	b.next, a.child = a.child, b
	return a
}

// meldAll makes one heap of siblings: first of each two, and then of these, from the last.
func meldAll(first *item) (heap *item) {
	var pairs *item
	for first != nil {
		a, b := first, first.next
		a.next, first = nil, nil
		if b != nil {
			first, b.next = b.next, nil
		}
		a = meld(a, b)
		a.next, pairs = pairs, a
	}
	for pairs != nil {
		a := pairs
		pairs, a.next = a.next, nil
		heap = meld(heap, a)
	}
	return heap
}

// all yields the items in no order.
func (q *queue) all() iter.Seq[*item] {
	return func(yield func(*item) bool) {
		for it := q.head; it != nil; it = it.next {
			if !yield(it) {
				return
			}
		}
		rest := []*item{q.heap}
		for len(rest) > 0 {
			it := rest[len(rest)-1]
			rest = rest[:len(rest)-1]
			for ; it != nil; it = it.next {
				if !yield(it) {
					return
				}
				if it.child != nil {
					rest = append(rest, it.child)
				}
			}
		}
	}
}

// remove takes out the items that gone selects, and returns them.
func (q *queue) remove(gone func(*item) bool) (removed []*item) {
	for it := range q.all() {
		if gone(it) {
			removed = append(removed, it)
		}
	}
	if removed == nil {
		return nil
	}
	all := slices.Collect(q.all())
	*q = queue{}
	for _, it := range all {
		if it.next, it.child = nil, nil; !gone(it) {
			q.push(it)
		}
	}
	return removed
}
