package memqueue

import (
	"cmp"
	"iter"
	"slices"
	"sort"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// An item is a delivery of the store. While it waits, it is either in one of its lane's queues, or
// claimed, or behind another item.
type item struct {
	record      store.Record // whose State is StateWaiting, and Claim not zero, while it is claimed
	lane        *lane
	order       uint64 // of the put or of the latest retry
	gone        bool   // it has left the store, and of its record only Seq and Due are left
	left, right *item  // the children in a heap; in the list of a queue, right is the next item
	// ahead and behind are the items before and after it that have the same Key; see order.go.
	ahead, behind *item
	key           store.Key // for the dedup window
}

// leave makes the item gone.
func (it *item) leave() {
	it.gone, it.record = true, store.Record{Delivery: store.Delivery{Seq: it.record.Seq, Due: it.record.Due}}
}

// compare is the order of items: by due time, then by order.
func (it *item) compare(other *item) int {
	return cmp.Or(it.record.Due.Compare(other.record.Due), cmp.Compare(it.order, other.order))
}

// queue returns the queue for the item: fresh before its first attempt, afterwards retries.
func (it *item) queue() *queue {
	if it.record.Expires.IsZero() {
		return &it.lane.fresh
	}
	return &it.lane.retries
}

// listed returns the record as lists have it.
func (it *item) listed() store.Record {
	r := it.record
	if r.Claim != 0 {
		r.State, r.Claim = store.StateClaimed, 0
	}
	return r
}

// A lane holds the deliveries of one destination that wait. The store has no empty lanes.
type lane struct {
	name                     string
	waiting, claimed, behind int              // waiting counts all items, claimed ones and those behind others included
	bytes                    int64            // the sizes of all items
	news                     bool             // the next Heads(false) yields the lane
	fresh, retries           queue            // the items to fetch, and some that are gone
	last                     map[string]*item // of each key; nil until an item has one
}

// head returns the Due of the first item in each queue.
func (l *lane) head() store.Head {
	return store.Head{Destination: l.name, Fresh: l.fresh.due(), Retry: l.retries.due()}
}

// A queue is a priority queue of items. The items hold the links, so push allocates nothing. An
// item that sorts after the tail is appended to the list, which is cheap however long the list is.
// Any other item goes into a skew heap.
type queue struct {
	list, tail, heap *item
	gone             int // of the items, those that are gone
	len              int
}

func (q *queue) push(it *item) {
	q.len++
	switch {
	case q.list == nil:
		q.list, q.tail = it, it
	case q.tail.compare(it) < 0:
		q.tail.right, q.tail = it, it
	default:
		q.heap = meld(q.heap, it)
	}
}

// first returns the first item that is not gone, or nil if there is none.
func (q *queue) first() *item {
	for {
		it := q.list
		if it == nil || q.heap != nil && q.heap.compare(it) < 0 {
			it = q.heap
		}
		if it == nil || !it.gone {
			return it
		}
		q.pop(it)
		q.gone--
	}
}

// pop removes the item it, which must be the first one.
func (q *queue) pop(it *item) {
	q.len--
	if it == q.list {
		q.list = it.right
	} else {
		q.heap = meld(it.left, it.right)
	}
	it.left, it.right = nil, nil
}

// forget says that one more item of the queue is gone. If most of them are, the queue is made anew
// without them.
func (q *queue) forget() {
	if q.gone++; q.gone < 32 || q.gone < q.len/2 {
		return
	}
	items := []*item{q.list, q.heap}
	for i := 0; i < len(items); i++ {
		if it := items[i]; it != nil {
			items = append(items, it.left, it.right)
			it.left, it.right = nil, nil
		}
	}
	*q = queue{}
	items = slices.DeleteFunc(items, func(it *item) bool { return it == nil || it.gone })
	slices.SortFunc(items, (*item).compare)
	for _, it := range items {
		q.push(it)
	}
}

// due returns the Due of the first item, or zero if there is none.
func (q *queue) due() time.Time {
	if it := q.first(); it != nil {
		return it.record.Due
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

// A log has the items of the store in the order of their Seq, and some that are gone.
type log struct {
	items []*item
	gone  int
}

// find returns the index of the first item whose Seq is not less than seq.
func (l *log) find(seq uint64) int {
	return sort.Search(len(l.items), func(i int) bool { return l.items[i].record.Seq >= seq })
}

// at returns the item with a Ref, or nil.
func (l *log) at(ref store.Ref) *item {
	i := l.find(ref.Seq)
	if i == len(l.items) {
		return nil
	}
	if it := l.items[i]; !it.gone && it.record.Ref() == ref {
		return it
	}
	return nil
}

// behind yields the items behind the number seq, the oldest first or the newest first. 0 stands for
// the beginning.
func (l *log) behind(seq uint64, oldest bool) iter.Seq[*item] {
	return func(yield func(*item) bool) {
		i, step := len(l.items)-1, -1
		if oldest {
			i, step = l.find(seq+1), 1
		} else if seq > 0 {
			i = l.find(seq) - 1
		}
		for ; i >= 0 && i < len(l.items); i += step {
			if it := l.items[i]; !it.gone && !yield(it) {
				return
			}
		}
	}
}

// forget says that one more item is gone. It removes those at the beginning, and removes all of
// them once they are more than half.
func (l *log) forget() {
	l.gone++
	for len(l.items) > 0 && l.items[0].gone {
		l.items[0], l.items = nil, l.items[1:]
		l.gone--
	}
	if l.gone > 32 && l.gone > len(l.items)/2 {
		l.items = slices.DeleteFunc(l.items, func(it *item) bool { return it.gone })
		l.gone = 0
	}
}
