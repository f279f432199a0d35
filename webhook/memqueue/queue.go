package memqueue

import (
	"cmp"
	"time"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/storekit"
)

// An item is a stored delivery. It is either in one of its lane's queues, or claimed.
type item struct {
	webhook.Delivery
	lane  *lane // nil after the item was removed from the store
	left  *item // neighbours in lane.items
	right *item
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

// before reports whether the receiver sorts before the item other: by due time, then by seq.
func (it *item) before(other *item) bool {
	return cmp.Or(it.Due.Compare(other.Due), cmp.Compare(it.seq, other.seq)) < 0
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
	items            *item // a linked list of all items, the latest first
	waiting, claimed int   // waiting counts all items, claimed ones included
	fresh, retries   queue // the items that are not claimed
}

// all yields all items, including claimed ones, the latest first. The loop may drop the current
// item.
func (l *lane) all(yield func(*item) bool) {
	for it := l.items; it != nil; {
		right := it.right
		if !yield(it) {
			return
		}
		it = right
	}
}

// change calls the function each for every item that matches and is not claimed. The function
// reports whether it has changed or dropped the item; if so, change rebuilds the queues. n is the
// number of these items. claimed is how many matching items change has skipped because they are
// claimed.
func (l *lane) change(match func(*webhook.Delivery) bool, each func(*item) bool) (n, claimed int) {
	for it := range l.all {
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
	for it := range l.all {
		if it.next, it.child = nil, nil; it.Claim == 0 {
			it.queue().push(it)
		}
	}
	return n, claimed
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
	case q.tail.before(it):
		q.tail.next, q.tail = it, it
	default:
		q.heap = meld(q.heap, it)
	}
}

// first returns the first item, or nil if there is none.
func (q *queue) first() *item {
	if q.head == nil || q.heap != nil && q.heap.before(q.head) {
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
