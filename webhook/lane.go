package webhook

import (
	"sync/atomic"
	"time"
)

// A lane holds the leased deliveries of one destination. The dispatcher's
// mutex guards it, but for target and the logs' state.
type lane struct {
	id     string
	ready  fifo[leased] // waiting for a worker
	active int          // being attempted
	limit  int          // of active, as the destination says
	now    int          // of active, as its answers allow: 1 to limit
	queued bool         // in the dispatcher's run queue
	given  int          // what is left of the room of the lease in progress
	more   bool         // the store may have more than there was room for

	// Until parked, nothing is leased, because the destination cannot be
	// used. After it, one delivery at a time finds out whether that is over.
	parked  time.Time
	probing bool
	blips   int // failed look-ups in a row

	target     atomic.Pointer[compiled]
	stragglers atomic.Int32 // deliveries with requests left on their way
	failures   logState
	deaths     logState
}

// A leased delivery is to be settled before until.
type leased struct {
	*Delivery
	until time.Time
}

// compiled is a target with the Destination it was made of.
type compiled struct {
	source *Destination
	target *target
}

// room is how many more deliveries the lane takes: as many ready as may be
// active, so that a worker which has ended one finds the next.
func (l *lane) room(now time.Time) int {
	most := 2 * l.now
	if l.probing {
		most = 1
		if now.Before(l.parked) {
			most = 0
		}
	}
	return max(most-l.active-l.ready.len(), 0)
}

// A pace is what a worker's turn says of the lane.
type pace uint8

const (
	noAttempt pace = iota // nothing
	answered              // the attempt ended in time, in whatever way
	timedOut              // it held its slot for as long as an attempt can
)

// adapt changes how many attempts the lane makes at once. A destination that
// hangs soon has one slot; one that is slow now and then keeps most of its
// own; one that has recovered gets a slot back with each answer.
func (l *lane) adapt(p pace) {
	switch p {
	case answered:
		l.now = min(l.now+1, l.limit)
	case timedOut:
		l.now = max(l.now-(l.now+7)/8, 1)
	}
}

// A fifo is a queue in a ring that grows.
type fifo[T any] struct {
	ring []T // its length is a power of two
	head int
	n    int
}

func (q *fifo[T]) len() int { return q.n }

func (q *fifo[T]) push(v T) {
	if q.n == len(q.ring) {
		ring := make([]T, max(2*q.n, 8))
		m := copy(ring, q.ring[q.head:])
		copy(ring[m:], q.ring[:q.head])
		q.ring, q.head = ring, 0
	}
	q.ring[(q.head+q.n)&(len(q.ring)-1)] = v
	q.n++
}

func (q *fifo[T]) pop() T {
	var zero T
	v := q.ring[q.head]
	q.ring[q.head] = zero
	q.head = (q.head + 1) & (len(q.ring) - 1)
	q.n--
	return v
}
