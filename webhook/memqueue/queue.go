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
	lane        *lane // nil after the item was removed from the store
	seq         uint64
	left, right *item // the children in a queue
	key         storekit.Key
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
	items := []*item{l.fresh.first, l.retries.first}
	for i := 0; i < len(items); i++ {
		if it := items[i]; it != nil {
			items = append(items, it.left, it.right)
		}
	}
	return slices.DeleteFunc(items, func(it *item) bool { return it == nil })
}

// head returns the Due of the first item in each queue.
func (l *lane) head() webhook.Head {
	return webhook.Head{Destination: l.name, Fresh: l.fresh.due(), Retry: l.retries.due()}
}

// A queue is a priority queue of items: a skew heap. The items hold the links, so push allocates
// nothing.
type queue struct{ first *item }

func (q *queue) push(it *item) { q.first = meld(q.first, it) }

// pop removes the first item, and returns it.
func (q *queue) pop() *item {
	it := q.first
	q.first = meld(it.left, it.right)
	it.left, it.right = nil, nil
	return it
}

// due returns the Due of the first item, or zero if there is none.
func (q *queue) due() time.Time {
	if q.first == nil {
		return time.Time{}
	}
	return q.first.Due
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
