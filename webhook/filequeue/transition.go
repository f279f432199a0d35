package filequeue

import (
	"context"

	"github.com/hookferry/analytics/webhook/store"
)

// A transition moves one delivery to the queue of its next state. All that happens to deliveries are
// transitions: puts, outcomes, replays, discards and erasures.
type transition struct {
	// The record of the next state. If it has no payload, nothing is written and the delivery keeps
	// its records. Its kind is kindGone if the delivery leaves the store, and 0 if the delivery goes
	// back to the queue from which it was claimed.
	record
	rest uint32 // of a claimed delivery, the size in the record without the length of the body
	lost bool   // the delivery leaves the store because it cannot be read
	put  bool   // the delivery is new
	keep bool   // it is claimed at once

	// Where the delivery is now. If it is claimed, id is its claim. Otherwise from says where it is;
	// of a new delivery it has only the destination.
	id   uint64
	from spot

	// group.transit sets the rest.
	entry entry
	claim *claim
	moved bool // the delivery was found, and is moved; or it is new and no duplicate
}

// leaving returns the transition of an unclaimed delivery that leaves the store.
func leaving(from where, at point) transition {
	return transition{record: record{header: header{kind: kindGone}}, from: spot{from, at}}
}

// transit adds transitions to the group, and returns how many deliveries it moves. It skips a delivery
// that is no longer where its transition expects it. A claim lasts until the commit is durable.
func (g *group) transit(ts []transition) (moved int) {
	var gone []ref
	lost := 0
	for i := range ts {
		t := &ts[i]
		switch {
		case t.put:
			t.moved = t.stored == noDedup || g.seen.Add(t.key, g.now)
		case t.id == 0:
			t.entry, t.moved = g.queue(t.from.where).remove(t.from.point)
		default:
			t.claim = g.claims[t.id]
			if t.moved = t.claim != nil && !t.claim.settled; t.moved {
				t.claim.settled = true
				t.entry, t.from.destination = t.claim.entry, t.claim.lane.name
				t.size = t.rest + uint32(t.entry.bytes())
				if t.kind == 0 {
					t.kind = waitingKind(t.claim.retry)
				}
			}
		}
		if !t.moved {
			continue
		}
		moved++
		if t.kind == kindGone {
			gone = append(gone, ref{t.entry.seq, t.entry.put.seg})
			if t.lost {
				lost++
			}
		} else if t.payload != nil {
			t.seq = t.entry.seq
			g.add(&t.record)
		}
	}
	g.gone(gone, lost)
	g.transits = append(g.transits, ts)
	return moved
}

// revert undoes what transit has done, because the op or the commit has failed.
func (t *transition) revert(x *index) {
	switch {
	case !t.moved:
	case t.put:
		if t.stored != noDedup {
			x.seen.Remove(t.key)
		}
	case t.claim != nil:
		t.claim.settled = false
	default:
		x.push(t.from.where, t.entry)
	}
}

// apply adds a delivery, which is new, claimed or removed from its queue, to the queue of its next
// state.
func (t *transition) apply(x *index) {
	if !t.moved {
		return
	}
	if t.id != 0 {
		x.unclaim(t.claim)
	}
	e, to := t.entry, where{t.kind, t.from.destination}
	if !t.put && (t.kind == kindGone || t.payload != nil) {
		x.count(&e, -1)
	}
	if t.put {
		e = entryOf(&t.record)
	} else if t.payload != nil {
		e.setState(&t.record)
	}
	if t.payload != nil {
		x.count(&e, 1)
	}
	switch {
	case t.kind == kindGone:
	case t.keep:
		t.claim = x.claim(x.lane(to.destination), e, t.kind == kindRetry)
	default:
		x.push(to, e)
		if t.id == 0 && !t.put { // the scheduler already knows about other changes
			x.announce(to.destination)
		}
	}
	x.prune(to.destination)
}

// transit commits transitions, and returns once they are durable. moved is the number of deliveries
// that were moved. The commit may use the reserve.
func (s *Store) transit(ctx context.Context, ts []transition) (moved int, err error) {
	size := int64(recordHeader)
	for i := range ts {
		size += 16 + recordSize(len(ts[i].payload))
	}
	if err := s.writer.do(ctx, func(g *group) error { moved = g.transit(ts); return nil }, size, false); err != nil {
		return 0, err
	}
	return moved, nil
}

// restate returns the transition of an unclaimed delivery, or of a dead letter, to state k. The
// caller has read d from the store, and then changed it.
func restate(from where, d *store.Ended, k kind) (t transition, err error) {
	t.record, err = deliveryRecord(nil, k, d, false)
	t.from = spot{from, pointOf(d.Key)}
	return t, err
}
