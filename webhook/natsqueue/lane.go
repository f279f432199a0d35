package natsqueue

import (
	"cmp"
	"container/heap"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// An entry is a delivery that waits or is claimed. The bytes of the delivery are in a message of
// the stream.
type entry struct {
	lane   *lane
	block  *block // the message
	i      uint32 // its place in the block
	user   uint32 // the hash of its user
	size   uint32 // bytes of the body
	stored uint32 // bytes in the message
	cached uint32 // bytes that hold has counted
	queued int32  // its place in its queue, from 1; 0 if it is in none
	retry  bool   // it has been attempted
	due    int64  // in microseconds
	order  uint64 // among entries with the same due
	claim  uint64 // 0 if it is not claimed
	write  *write // the write that settles it, if any
	key    store.Key

	// delivery is nil while the delivery is only in the stream. load sets it for each entry that is
	// claimed, and hold for some others.
	delivery *store.Delivery
}

// bytes returns the size of e in its message.
func (e *entry) bytes() int64 { return int64(e.stored) + 4 }

// waits reports whether e has not ended, and its partition is not lost. The index is locked.
func (e *entry) waits() bool { return e.block.p.state != lost && e.block.entries[e.i] == e }

// compare returns a negative number if e sorts before x in a queue.
func (e *entry) compare(x *entry) int {
	return cmp.Or(cmp.Compare(e.due, x.due), cmp.Compare(e.order, x.order))
}

// A lane has the waiting and claimed deliveries of one destination. Its partition is owned by this
// node.
type lane struct {
	name             string
	p                *partition
	fresh, retries   queue // entries that are not claimed
	waiting, claimed int   // all entries of the lane, and how many of them are claimed
	cached           int64 // bytes that hold has counted for them
}

func (l *lane) queue(retries bool) *queue {
	if retries {
		return &l.retries
	}
	return &l.fresh
}

func (l *lane) push(e *entry) { heap.Push(l.queue(e.retry), e) }

// leave takes e out of its queue, if it is in one.
func (l *lane) leave(e *entry) {
	if e.queued > 0 {
		heap.Remove(l.queue(e.retry), int(e.queued)-1)
	}
}

func (l *lane) head() store.Head {
	return store.Head{Destination: l.name, Fresh: l.fresh.due(), Retry: l.retries.due()}
}

// A queue is a heap of entries, the earliest first.
type queue []*entry

// The methods of heap.Interface.
func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].compare(q[j]) < 0 }
func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].queued, q[j].queued = int32(i+1), int32(j+1)
}
func (q *queue) Push(x any) {
	e := x.(*entry)
	*q = append(*q, e)
	e.queued = int32(len(*q))
}
func (q *queue) Pop() any {
	n := len(*q) - 1
	e := (*q)[n]
	(*q)[n] = nil
	e.queued = 0
	if *q = (*q)[:n]; n == 0 {
		*q = nil // frees the array
	}
	return e
}

// due returns when the first entry is due, or the zero time if there is none.
func (q queue) due() time.Time {
	if len(q) == 0 {
		return time.Time{}
	}
	return time.UnixMicro(q[0].due).UTC()
}
