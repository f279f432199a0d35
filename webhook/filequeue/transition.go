package filequeue

import (
	"math"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// A transition moves one delivery to the queue of its next state. All that happens to deliveries are
// transitions: puts, outcomes, replays, discards and erasures.
type transition struct {
	// The record of the next state. If it has no payload, nothing is written and the delivery keeps
	// its records. Its kind is kindGone if the delivery leaves the store, and 0 if the delivery goes
	// back to the queue from which it was claimed.
	record record
	rest   uint32 // of a claimed delivery, the size in the record without the length of the body
	lost   bool   // the delivery leaves the store because it cannot be read
	lapsed bool   // it is buried with a Reason that is Lapsed: the next one with its key keeps its own due
	unkept bool   // the delivery is not kept, because the janitor falls behind with the history
	put    bool   // the delivery is new
	keep   bool   // it is claimed at once

	// If the delivery is claimed, id is its claim. Otherwise it is in the queue from, with this rank.
	// Of a new delivery, from has only the destination.
	id   uint64
	from queueID
	rank rank

	// group.transit sets the rest.
	entry entry
	claim *claim
	moved bool // the delivery was found, and is moved; or it is new and no duplicate

	// apply sets these.
	behind   bool      // the delivery is behind another one
	released time.Time // when the delivery is due that was behind this one, or zero
}

// leaving returns the transition of an unclaimed delivery that leaves the store.
func leaving(from queueID, at rank) transition {
	return transition{record: record{kind: kindGone}, from: from, rank: at}
}

// revert undoes what transit has done, because the op or the commit has failed.
func (t *transition) revert(x *index) {
	switch {
	case !t.moved:
	case t.put:
		if t.record.stored != noDedup {
			x.seen.Remove(t.record.key)
		}
	case t.claim != nil:
		t.claim.settled = false
	default:
		x.push(t.from, t.entry)
	}
}

// apply adds a delivery, which is new, claimed or removed from its queue, to the queue of its next
// state.
func (t *transition) apply(x *index, now int64) {
	if !t.moved {
		return
	}
	if t.id != 0 {
		x.unclaim(t.claim)
	}
	if t.unkept {
		x.history.unkept++
	}
	e, to := t.entry, queueID{t.record.kind, t.from.destination}
	if !t.put && (t.record.kind == kindGone || t.record.payload != nil) {
		x.count(&e, -1)
	}
	if t.record.whole() {
		e = entryOf(&t.record)
	} else if t.record.payload != nil {
		e.setState(&t.record)
	}
	if t.record.payload != nil {
		x.count(&e, 1)
	}
	if to.kind != kindFresh && to.kind != kindRetry {
		if t.lapsed {
			now = math.MinInt64
		}
		t.released = x.part(to.destination, t.entry.seq, now)
		if !t.released.IsZero() && (t.id == 0 || t.lost) { // the scheduler does not know
			x.announce(to.destination)
		}
	} else if t.record.whole() {
		_, key := t.record.destination()
		if t.behind = x.lane(to.destination).follow(e.seq, key); t.behind {
			to.kind = kindBehind
			e.wait(key)
		}
	}
	switch {
	case to.kind == kindGone:
	case t.keep && !t.behind:
		t.claim = x.claim(x.lane(to.destination), e, t.record.kind == kindRetry)
	default:
		x.push(to, e)
		if t.id == 0 && !t.put { // the scheduler already knows about other changes
			x.announce(to.destination)
		}
	}
	x.prune(to.destination)
}

// restate returns the transition of an unclaimed delivery to state k. The caller has read d from the
// store, and then changed it. With anew, the delivery is put again, with the next sequence number, and
// the dedup window ignores that.
func restate(f *found, d *store.Record, k kind, anew bool) (t transition, err error) {
	t.record, err = deliveryRecord(nil, k, d, anew)
	t.from, t.rank = f.in, f.entry.rank()
	return t, err
}
