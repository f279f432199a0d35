package filequeue

import (
	"context"

	"github.com/hookferry/analytics/webhook"
)

// A transition moves one delivery from its queue to the queue of its next state. All changes of
// stored deliveries are transitions: outcomes, replays, discards and erasures.
type transition struct {
	// The record of the next state. If it has no payload, nothing is written and the delivery keeps
	// its state record. Its kind is kindGone or kindLost if the delivery leaves the store, and 0 if
	// the delivery goes back to the queue from which it was claimed.
	record
	bytes int64 // the result of entry.bytes in the next state

	// Where the delivery is now. If the delivery is claimed, the field id is its claim. Otherwise
	// the field from names its queue, and the field at is its point in that queue.
	id   uint64
	from where
	at   point

	// group.transit sets the rest.
	entry entry
	claim *claim
	moved bool // the delivery was found, and is moved
	held  bool // the delivery was not found, because it is claimed
}

// leaving returns the transition of a delivery that leaves the store.
func leaving(k kind, from where, at point) transition {
	return transition{record: record{header: header{kind: k}}, from: from, at: at}
}

// transit adds transitions to the group. It skips a delivery that is no longer where its transition
// expects it. It returns the number of deliveries that it moves. All deliveries that leave the
// store are listed in one record of kindGone and one of kindLost.
func (g *group) transit(ts []transition) (moved int) {
	var gone, lost []ref
	for i := range ts {
		t := &ts[i]
		if t.id == 0 {
			t.entry, t.moved = g.queue(t.from).remove(t.at)
		} else if t.claim, t.moved = g.claims[t.id]; t.moved {
			t.entry, t.from.destination = g.unclaim(t.claim), t.claim.lane.name
			if t.kind == 0 {
				t.kind = waitingKind(t.claim.retry)
			}
		}
		if !t.moved {
			t.held = g.queue(where{claimed, t.from.destination}).at(t.at) != nil
			continue
		}
		moved++
		switch {
		case t.kind == kindGone:
			gone = append(gone, ref{t.entry.seq, t.entry.put.seg})
		case t.kind == kindLost:
			lost = append(lost, ref{t.entry.seq, t.entry.put.seg})
		case t.payload != nil:
			t.seq = t.entry.seq
			g.add(&t.record)
		}
	}
	g.gone(kindGone, gone)
	g.gone(kindLost, lost)
	g.undo(func() {
		for i := range ts {
			t := &ts[i]
			if !t.moved {
				continue
			}
			from := t.from
			if t.id != 0 {
				g.claims[t.id] = t.claim
				from.kind = claimed
			}
			g.queue(from).push(t.entry)
			g.watch(from, &t.entry)
		}
	})
	g.then(func(seg *segment) {
		for i := range ts {
			if ts[i].moved {
				ts[i].apply(g.index, seg)
			}
		}
	})
	return moved
}

// apply adds a delivery, which transit removed from its queue, to the queue of its next state.
func (t *transition) apply(x *index, seg *segment) {
	e, destination := t.entry, t.from.destination
	if t.payload != nil {
		x.segs.count(&e, -1)
		e.setState(seg.number, &t.record)
		e.setBytes(t.bytes)
		x.segs.count(&e, 1)
	}
	switch t.kind {
	case kindGone, kindLost:
		x.segs.count(&e, -1)
	case kindDead, kindDelivered:
		x.queue(where{kind: t.kind}).push(e)
		x.watch(where{kind: t.kind}, &e)
	default:
		x.lane(destination).queue(t.kind == kindRetry).push(e)
		x.watch(where{t.kind, destination}, &e)
		if t.id == 0 { // the scheduler already knows about deliveries that it had claimed
			x.announce(destination)
		}
	}
	x.prune(destination)
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

// toState returns the transition of a delivery to state k. d may lack its body, whose length is the
// argument body.
func toState(k kind, d *webhook.DeadLetter, body int64) (t transition, err error) {
	t.record, err = stateRecord(k, d, d.Size()-int64(len(d.Body))+body)
	if t.bytes = body; k == kindDead || k == kindDelivered {
		t.bytes = int64(t.size)
	}
	return t, err
}

// restate returns the transition of an unclaimed delivery, or of a dead letter, to state k. The
// caller has read d from the store, and then changed it.
func restate(from where, d *webhook.DeadLetter, k kind) (t transition, err error) {
	t, err = toState(k, d, int64(len(d.Body)))
	t.from, t.at = from, pointOf(d.Key)
	return t, err
}
