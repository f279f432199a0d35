package natsqueue

import (
	"cmp"
	"container/heap"
	"slices"
	"time"

	"github.com/hookferry/analytics/webhook"
)

// An entry is a delivery that waits. The delivery itself may be in memory or not; a message
// of the stream has it.
type entry struct {
	lane    *lane
	block   *block // the message
	i       uint32 // in the block
	user    uint32 // the hash of its user
	size    uint32 // of the body
	stored  uint32 // how many bytes its message has of it
	retry   bool
	gone    bool   // it does not wait any more, though a queue may have it
	damaged bool   // it cannot be read, is in no lane, and is set aside by the cleaner
	due     int64  // in microseconds
	order   uint64 // among those that are due at the same time
	claim   uint64 // 0 if it is not claimed
	write   *write // that settles it, if any
	cost    int64  // that the cache counts, 0 if it does not
	slot    uint64 // in the cache

	delivery *webhook.Delivery // nil if it is not in memory; a claimed one always is
}

// bytes is what e takes in its message. What is damaged counts as garbage.
func (e *entry) bytes() int64 {
	if e.damaged {
		return 0
	}
	return int64(e.stored) + 4
}

func (e *entry) compare(f *entry) int {
	return cmp.Or(cmp.Compare(e.due, f.due), cmp.Compare(e.order, f.order))
}

// A lane is a destination that something waits for, in a partition that is owned.
type lane struct {
	name             string
	p                *partition
	queues           [2]queue // fresh deliveries and retries that are not claimed
	waiting, claimed int      // the claimed ones are among those that wait
}

func (l *lane) queue(retries bool) *queue {
	if retries {
		return &l.queues[1]
	}
	return &l.queues[0]
}

// push puts an entry into its queue.
func (l *lane) push(e *entry) { heap.Push(l.queue(e.retry), e) }

// leave takes entries out of the queues.
func (l *lane) leave(taken map[*entry]bool) {
	for i := range l.queues {
		q := &l.queues[i]
		*q = slices.DeleteFunc(*q, func(e *entry) bool { return taken[e] })
		heap.Init(q)
	}
}

// oldest returns when the first entry that is not claimed is due, in microseconds; 0 if there is none.
func (l *lane) oldest() (due int64) {
	for i := range l.queues {
		if e := l.queues[i].first(); e != nil && (due == 0 || e.due < due) {
			due = e.due
		}
	}
	return due
}

// dueTime returns a time in microseconds, zero for 0.
func dueTime(micros int64) time.Time {
	if micros == 0 {
		return time.Time{}
	}
	return time.UnixMicro(micros).UTC()
}

// A queue is a heap of entries, the earliest first. Those that are gone are left out when they
// come first.
type queue []*entry

// The methods of heap.Interface.
func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].compare(q[j]) < 0 }
func (q queue) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(e any)        { *q = append(*q, e.(*entry)) }
func (q *queue) Pop() any {
	n := len(*q) - 1
	e := (*q)[n]
	(*q)[n] = nil
	if *q = (*q)[:n]; n == 0 {
		*q = nil // so that the array goes
	}
	return e
}

// first returns the first entry, nil if there is none.
func (q *queue) first() *entry {
	for len(*q) > 0 {
		if e := (*q)[0]; !e.gone {
			return e
		}
		heap.Pop(q)
	}
	return nil
}

// due returns when the first entry is due, zero if there is none.
func (q *queue) due() time.Time {
	if e := q.first(); e != nil {
		return dueTime(e.due)
	}
	return time.Time{}
}

// soon is how long before its time a delivery may be in memory.
const soon = 10 * time.Second

// entryBytes is about what a delivery in memory costs beside its texts.
const entryBytes = 512

// A cache counts the deliveries in memory that are not claimed, and forgets the oldest first.
type cache struct {
	limit, used int64
	slots       []slot // in the order they came; those that have left among them
	left        int    // how many have not
	number      uint64 // of the latest slot
}

// A slot is an entry, if it still has this number.
type slot struct {
	*entry
	number uint64
}

func (x slot) taken() bool { return x.cost > 0 && x.entry.slot == x.number }

// add keeps the delivery of e, if it is due soon.
func (c *cache) add(e *entry) {
	if e.due > time.Now().Add(soon).UnixMicro() {
		e.delivery = nil
		return
	}
	c.number++
	e.cost, e.slot = e.delivery.Size()+entryBytes, c.number
	c.used += e.cost
	c.left++
	c.slots = append(c.slots, slot{e, e.slot})
	for c.used > c.limit {
		first := c.slots[0]
		c.slots[0] = slot{}
		c.slots = c.slots[1:]
		if first.taken() {
			c.leave(first.entry)
			first.delivery = nil
		}
	}
	if len(c.slots) > 2*c.left+1024 {
		c.slots = slices.DeleteFunc(c.slots, func(x slot) bool { return !x.taken() })
	}
}

// leave no longer counts e.
func (c *cache) leave(e *entry) {
	if e.cost > 0 {
		c.used -= e.cost
		c.left--
		e.cost = 0
	}
}
