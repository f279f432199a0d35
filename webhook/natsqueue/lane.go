package natsqueue

import (
	"cmp"
	"container/heap"
	"slices"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// An entry is a delivery that waits or is claimed. The bytes of the delivery are in a message of
// the stream.
type entry struct {
	lane   *lane
	block  *block  // the message
	i      uint32  // its place in the block
	user   uint32  // the hash of its user
	size   uint32  // bytes of the body
	stored uint32  // bytes in the message
	cached uint32  // bytes that hold has counted
	queued int32   // its place in its queue, from 1; 0 if it is in none
	retry  bool    // it has been attempted
	behind bool    // it is behind another one of its series
	due    int64   // in microseconds
	seq    uint64  // the Seq of the delivery; the order among entries with the same due
	claim  uint64  // 0 if it is not claimed
	write  *write  // the write that settles it, if any
	series *series // nil for a delivery without a key
	key    store.Key

	// delivery is nil while the delivery is only in the stream. load sets it for each entry that is
	// claimed, and hold for some others.
	delivery *store.Delivery
}

// bytes returns the size of e in its message.
func (e *entry) bytes() int64 { return int64(e.stored) + 4 }

// waits reports whether e has not ended, and its partition is not lost. The index is locked.
func (e *entry) waits() bool { return e.block.p.state != lost && e.block.entries[e.i] == e }

func (e *entry) state() store.State {
	switch {
	case e.claim != 0:
		return store.StateClaimed
	case e.behind:
		return store.StateBehind
	}
	return store.StateWaiting
}

// at returns when e is due.
func (e *entry) at() time.Time { return time.UnixMicro(e.due).UTC() }

// queue returns the queue for e.
func (e *entry) queue() *queue {
	if e.behind {
		return &e.series.behind
	}
	return e.lane.queue(e.retry)
}

// compare returns a negative number if e sorts before x in their queue.
func (e *entry) compare(x *entry) int {
	if e.behind {
		return cmp.Compare(e.seq, x.seq)
	}
	return cmp.Or(cmp.Compare(e.due, x.due), cmp.Compare(e.seq, x.seq))
}

// A lane has the deliveries of one destination. Its partition is owned by this node.
type lane struct {
	name             string
	p                *partition
	fresh, retries   queue              // entries that are not claimed
	waiting, claimed int                // all entries of the lane, and how many of them are claimed
	behind           int                // how many are behind others
	series           map[string]*series // of each key; nil until a delivery has one
	cached           int64              // bytes that hold has counted for them
	bytes            int64              // of all entries, in their messages

	// list has a place for each entry and each dead letter, in the order of their Seqs. While the
	// partition is read, it is empty. gone counts the places of deliveries that are gone.
	list []place
	gone int
}

func (l *lane) queue(retries bool) *queue {
	if retries {
		return &l.retries
	}
	return &l.fresh
}

func (l *lane) push(e *entry) { heap.Push(e.queue(), e) }

// leave takes e out of its queue, if it is in one.
func (l *lane) leave(e *entry) {
	if e.queued > 0 {
		heap.Remove(e.queue(), int(e.queued)-1)
	}
	if e.behind {
		e.behind = false
		l.behind--
	}
}

func (l *lane) head() store.Head {
	return store.Head{Destination: l.name, Fresh: l.fresh.due(), Retry: l.retries.due()}
}

// find returns the index in the list of the first place whose Seq is at least seq.
func (l *lane) find(seq uint64) int {
	i, _ := slices.BinarySearchFunc(l.list, seq, func(x place, seq uint64) int { return cmp.Compare(x.seq, seq) })
	return i
}

// at returns the place of the delivery with the number seq, or nil if there is none.
func (l *lane) at(seq uint64) *place {
	if i := l.find(seq); i < len(l.list) && l.list[i].seq == seq && l.list[i].state() != "" {
		return &l.list[i]
	}
	return nil
}

// enter adds a place, which is nearly always the last one.
func (l *lane) enter(x place) {
	if n := len(l.list); n == 0 || l.list[n-1].seq < x.seq {
		l.list = append(l.list, x)
	} else {
		l.list = slices.Insert(l.list, l.find(x.seq), x)
	}
}

func (l *lane) sort() {
	slices.SortFunc(l.list, func(x, y place) int { return cmp.Compare(x.seq, y.seq) })
}

// vacate says that the delivery of x, a place in the list, is gone. If most are, the list is made anew.
func (l *lane) vacate(x *place) {
	x.entry, x.letter = nil, nil
	if l.gone++; l.gone <= len(l.list)/2 {
		return
	}
	left := make([]place, 0, len(l.list)-l.gone)
	for _, x := range l.list {
		if x.state() != "" {
			left = append(left, x)
		}
	}
	l.list, l.gone = left, 0
}

// first returns the index in the list of the first place behind the number after, or of all if it is 0,
// in one order or the other. It may be outside the list.
func (l *lane) first(after uint64, oldest bool) int {
	switch {
	case oldest:
		return l.find(after + 1)
	case after == 0:
		return len(l.list) - 1
	}
	return l.find(after) - 1
}

// has reports whether the lane has deliveries in a state that q selects.
func (l *lane) has(q *store.Query) bool {
	return q.HasState(store.StateDead) && len(l.list)-l.gone > l.waiting ||
		q.HasState(store.StateClaimed) && l.claimed > 0 || q.HasState(store.StateBehind) && l.behind > 0 ||
		q.HasState(store.StateWaiting) && l.waiting > l.claimed+l.behind
}

// A place is the place of a delivery in the list of its lane. It has either an entry or a letter,
// or neither once the delivery is gone.
type place struct {
	seq    uint64
	entry  *entry
	letter *letter
}

// state returns the state of the delivery, or "" if it is gone. The index is locked.
func (x *place) state() store.State {
	switch {
	case x.letter != nil:
		return store.StateDead
	case x.entry == nil:
		return ""
	}
	return x.entry.state()
}

// user returns the hash of the user of the delivery.
func (x *place) user() uint32 {
	if x.letter != nil {
		return x.letter.user
	}
	return x.entry.user
}

// size returns how many bytes the delivery has in the stream.
func (x *place) size() int64 {
	if x.letter != nil {
		return int64(x.letter.size)
	}
	return x.entry.bytes()
}

// A queue is a heap of entries, the first one of their order first.
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
	return q[0].at()
}
