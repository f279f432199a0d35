package memqueue

import (
	"cmp"
	"slices"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// An item is a stored delivery. It is either in one of its lane's queues, or claimed.
type item struct {
	delivery    store.Delivery
	lane        *lane
	seq         uint64 // of the put or of the latest retry
	left, right *item  // the children in a heap; in the list of a queue, right is the next item
	key         store.Key
}

// compare is the order of items: by due time, then by seq.
func (it *item) compare(other *item) int {
	return cmp.Or(it.delivery.Due.Compare(other.delivery.Due), cmp.Compare(it.seq, other.seq))
}

// queue returns the queue for the item: fresh before its first attempt, afterwards retries.
func (it *item) queue() *queue {
	if it.delivery.Expires.IsZero() {
		return &it.lane.fresh
	}
	return &it.lane.retries
}

// A lane holds the deliveries of one destination. The store has no empty lanes.
type lane struct {
	name             string
	waiting, claimed int   // waiting counts all items, claimed ones included
	news             bool  // the next Heads(false) yields the lane
	fresh, retries   queue // the items that are not claimed
}

// unclaimed returns the items in the queues of the lane, in no order.
func (l *lane) unclaimed() []*item {
	items := []*item{l.fresh.list, l.fresh.heap, l.retries.list, l.retries.heap}
	for i := 0; i < len(items); i++ {
		if it := items[i]; it != nil {
			items = append(items, it.left, it.right)
		}
	}
	return slices.DeleteFunc(items, func(it *item) bool { return it == nil })
}

// head returns the Due of the first item in each queue.
func (l *lane) head() store.Head {
	return store.Head{Destination: l.name, Fresh: l.fresh.due(), Retry: l.retries.due()}
}

// A queue is a priority queue of items. The items hold the links, so push allocates nothing. An
// item that sorts after the tail is appended to the list, which is cheap however long the list is.
// Any other item goes into a skew heap.
type queue struct{ list, tail, heap *item }

func (q *queue) push(it *item) {
	switch {
	case q.list == nil:
		q.list, q.tail = it, it
	case q.tail.compare(it) < 0:
		q.tail.right, q.tail = it, it
	default:
		q.heap = meld(q.heap, it)
	}
}

// first returns the first item, or nil if there is none.
func (q *queue) first() *item {
	if q.list == nil || q.heap != nil && q.heap.compare(q.list) < 0 {
		return q.heap
	}
	return q.list
}

// pop removes the item it, which must be the first one.
func (q *queue) pop(it *item) {
	if it == q.list {
		q.list = it.right
	} else {
		q.heap = meld(it.left, it.right)
	}
	it.left, it.right = nil, nil
}

// due returns the Due of the first item, or zero if there is none.
func (q *queue) due() time.Time {
	if it := q.first(); it != nil {
		return it.delivery.Due
	}
	return time.Time{}
}

// meld merges two skew heaps. It goes down the right side of each heap, and swaps the children of
// every node that it passes. The swaps keep the amortised cost at O(log n).
func meld(a, b *item) *item {
	var top *item
	for at := &top; ; at = &(*at).left {
		if a == nil || b != nil && b.compare(a) < 0 {
			a, b = b, a
		}
		if *at = a; b == nil {
			return top
		}
		rest := a.right
		a.right = a.left
		a = rest
	}
}
