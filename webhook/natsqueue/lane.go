package natsqueue

import (
	"cmp"
	"container/heap"
	"time"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/storekit"
)

// An entry is a delivery that waits or is claimed. The bytes of the delivery are in a message of
// the stream.
type entry struct {
	lane    *lane  // nil if the entry is damaged
	block   *block // the message
	i       uint32 // its place in the block
	user    uint32 // the hash of its user
	size    uint32 // bytes of the body
	stored  uint32 // bytes in the message
	retry   bool   // it has been attempted
	damaged bool   // it cannot be read; the cleaner sets it aside
	gone    bool   // it is ended or replaced, but a queue may still hold it
	due     int64  // in microseconds
	order   uint64 // among entries with the same due
	claim   uint64 // 0 if it is not claimed
	write   *write // the write that settles it, if any
	key     storekit.Key

	// delivery is nil while the delivery is only in the stream. Fetch loads it for each entry that it
	// claims.
	delivery *webhook.Delivery
}

// bytes returns the size of e in its message. A damaged entry counts as garbage, so its size is 0.
func (e *entry) bytes() int64 {
	if e.damaged {
		return 0
	}
	return int64(e.stored) + 4
}

// A lane has the waiting and claimed deliveries of one destination. Its partition is owned by this
// node.
type lane struct {
	name             string
	p                *partition
	fresh, retries   queue // entries that are not claimed
	waiting, claimed int   // all entries of the lane, and how many of them are claimed
}

func (l *lane) queue(retries bool) *queue {
	if retries {
		return &l.retries
	}
	return &l.fresh
}

func (l *lane) push(e *entry) { heap.Push(l.queue(e.retry), e) }

func (l *lane) head() webhook.Head {
	return webhook.Head{Destination: l.name, Fresh: l.fresh.due(), Retry: l.retries.due()}
}

// A queue is a heap of entries, the earliest first. An entry whose field gone is set counts as
// removed, but stays in the heap until it is the first.
type queue []*entry

// The methods of heap.Interface.
func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(q[i].due, q[j].due), cmp.Compare(q[i].order, q[j].order)) < 0
}
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(e any)   { *q = append(*q, e.(*entry)) }
func (q *queue) Pop() any {
	n := len(*q) - 1
	e := (*q)[n]
	(*q)[n] = nil
	if *q = (*q)[:n]; n == 0 {
		*q = nil // frees the array
	}
	return e
}

// first returns the first entry, or nil.
func (q *queue) first() *entry {
	for len(*q) > 0 {
		if e := (*q)[0]; !e.gone {
			return e
		}
		heap.Pop(q)
	}
	return nil
}

// due returns when the first entry is due, or the zero time if there is none.
func (q *queue) due() time.Time {
	if e := q.first(); e != nil {
		return time.UnixMicro(e.due).UTC()
	}
	return time.Time{}
}
