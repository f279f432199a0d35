package memqueue

import (
	"cmp"
	"slices"
	"time"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/storekit"
)

// An item is a stored delivery. It is either in one of its lane's queues, or claimed.
type item struct {
	webhook.Delivery
	lane  *lane // nil after the item was removed from the store
	seq   uint64
	next  *item // in a queue's list the next item, in its heap one child
	child *item // the other child in the heap
	key   storekit.Key
}

// size returns how many bytes a delivery counts for Config.MaxBytes. Retries do not change this
// size.
func size(d *webhook.Delivery) int64 {
	return int64(len(d.Body)+len(d.ID)+len(d.MessageID)+len(d.Source)+len(d.User)+len(d.Event)) + overhead
}

// compare is the order of items: by due time, then by seq.
func (it *item) compare(other *item) int {
	return cmp.Or(it.Due.Compare(other.Due), cmp.Compare(it.seq, other.seq))
}

// queue returns the queue for the item: fresh before its first attempt, afterwards retries.
func (it *item) queue() *queue {
	if it.Expires.IsZero() {
		return &it.lane.fresh
	}
	return &it.lane.retries
}

// A lane holds the deliveries of one destination. The store has no empty lanes.
type lane struct {
	name             string
	waiting, claimed int   // waiting counts all items, claimed ones included
	fresh, retries   queue // the items that are not claimed
}

// unclaimed returns the items in the queues of the lane, in no order.
func (l *lane) unclaimed() []*item {
	items := []*item{l.fresh.head, l.fresh.heap, l.retries.head, l.retries.heap}
	for i := 0; i < len(items); i++ {
		if it := items[i]; it != nil {
			items = append(items, it.next, it.child)
		}
	}
	return slices.DeleteFunc(items, func(it *item) bool { return it == nil })
}

// head returns the Due of the first item in each queue.
func (l *lane) head() webhook.Head {
	return webhook.Head{Destination: l.name, Fresh: l.fresh.due(), Retry: l.retries.due()}
}

// A queue is a priority queue of items. An item that sorts after the list's tail is appended to the
// list; any other item goes into a skew heap. The items hold the links, so push allocates nothing.
type queue struct {
	head, tail *item
	heap       *item
}

func (q *queue) push(it *item) {
	switch {
	case q.head == nil:
		q.head, q.tail = it, it
	case q.tail.compare(it) < 0:
		q.tail.next, q.tail = it, it
	default:
		q.heap = meld(q.heap, it)
	}
}

// first returns the first item, or nil if there is none.
func (q *queue) first() *item {
	if q.head == nil || q.heap != nil && q.heap.compare(q.head) < 0 {
		return q.heap
	}
	return q.head
}

// due returns the Due of the first item, or zero if there is none.
func (q *queue) due() time.Time {
	if it := q.first(); it != nil {
		return it.Due
	}
	return time.Time{}
}

// pop removes the item it, which must be the first one.
func (q *queue) pop(it *item) {
	if it == q.head {
		q.head = it.next
	} else {
		q.heap = meld(it.next, it.child)
	}
	it.next, it.child = nil, nil
}

// meld merges two skew heaps. It goes down one side of each heap, and swaps the children of every
// node that it passes. The swaps keep the amortised cost at O(log n).
func meld(a, b *item) *item {
	var top *item
	for at := &top; ; at = &(*at).child {
		if a == nil || b != nil && b.compare(a) < 0 {
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
