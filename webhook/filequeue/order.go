package filequeue

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// The waiting deliveries of a lane that have one key are in the order of their sequence numbers. The
// first one is in lane.fresh or lane.retries, or claimed. The others are in lane.behind, where those
// with one key are next to each other. No record says that a delivery was released: Open finds the
// first one of each key by its sequence number.
//
// The index has a hash in place of a key, and 0 in place of no key. Two keys of a destination that
// have the same hash, of 64 bits, are ordered as if they were one.

// keyHash returns the hash of a key of a destination.
func keyHash(destination, key string) uint64 {
	if key == "" {
		return 0
	}
	sum := store.KeyOf(destination, key)
	return max(binary.LittleEndian.Uint64(sum[:]), 1)
}

// wait changes an entry of lane.fresh to one of lane.behind.
func (e *entry) wait(key uint64) {
	e.state = position{uint32(e.due >> 32), uint32(e.due)}
	e.due = int64(key)
}

// release changes an entry of lane.behind to one of lane.fresh. It is due now, or at its own due if
// that is later.
func (e *entry) release(now int64) {
	e.due = max(now, int64(e.state.seg)<<32|int64(e.state.off))
	e.state = position{}
}

// lead makes a delivery the first one of its key.
func (l *lane) lead(seq, key uint64) {
	if l.firsts == nil {
		l.firsts, l.keys = make(map[uint64]uint64), make(map[uint64]int)
	}
	l.firsts[seq] = key
	l.keys[key]++
}

// follow puts a new delivery at the end of its key. It reports whether it is behind another one.
func (l *lane) follow(seq, key uint64) (behind bool) {
	switch {
	case key == 0:
	case l.keys[key] > 0:
		return true
	default:
		l.lead(seq, key)
	}
	return false
}

// part takes a delivery, which does not wait any more, out of its key. If it was the first one, part
// releases the next, not before now, and returns when that is due. Otherwise it returns zero.
func (x *index) part(destination string, seq uint64, now int64) time.Time {
	l := x.lanes[destination]
	if l == nil {
		return time.Time{}
	}
	key, ok := l.firsts[seq]
	if !ok {
		return time.Time{}
	}
	delete(l.firsts, seq)
	if l.keys[key]--; l.keys[key] > 0 {
		return time.Time{}
	}
	next := l.behind.from(rank{int64(key), 0})
	if next == nil || next.due != int64(key) {
		delete(l.keys, key)
		return time.Time{}
	}
	e, _ := l.behind.remove(next.rank())
	e.release(now)
	l.lead(e.seq, key)
	x.push(queueID{kindFresh, l.name}, e)
	return e.dueAt()
}

// sort sorts the queues, in which the loader has collected entries. If a key has no first delivery,
// sort moves its first entry that is behind to the fresh ones.
func (l *lane) sort() {
	all := l.behind.collected()
	l.behind = queue{chunks: []entries{{all: all[:0]}}} // uses the same memory
	for _, e := range all {
		if key := uint64(e.due); l.keys[key] == 0 {
			e.release(math.MinInt64)
			l.lead(e.seq, key)
			l.fresh.collect(e)
		} else {
			l.behind.collect(e)
		}
	}
	for _, k := range kinds {
		l.queue(k).sort()
	}
}
