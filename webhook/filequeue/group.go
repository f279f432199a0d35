package filequeue

import (
	"fmt"
	"slices"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// An op plans the records of one call, which are stored all or not at all. It adds them to the
// group, or returns an error. If a commit fails, the writer reverts the transitions of the op, and
// may then call the op again. It holds index.mu while it calls ops, and the functions that they
// have passed to then.
type op func(g *group) error

// A group collects the records of one commit, from one op or more. If the commit fails, all of its
// ops fail.
type group struct {
	index   *index
	now     time.Time
	seq     uint64 // of the next record
	records []*record
	bytes   int64 // of the records
	puts    bool  // some are of ops that may not use the reserve

	transits [][]transition // of the calls of transit
	thens    []func()
}

// add adds a record to the group. A record without a sequence number gets the next one.
func (g *group) add(r *record) {
	if r.seq == 0 {
		r.seq = g.seq
		g.seq++
	}
	g.records = append(g.records, r)
	g.bytes += recordSize(len(r.payload))
}

// gone adds a record of kindGone that lists refs, if there are any. The argument lost says how many
// deliveries of them are lost.
func (g *group) gone(refs []ref, lost int) {
	if len(refs)+lost == 0 {
		return
	}
	r := listing(kindGone, refs)
	r.size = uint32(lost)
	g.add(&r)
	g.then(func() { g.index.losses += lost })
}

// then registers f, which the writer calls once the records are durable.
func (g *group) then(f func()) { g.thens = append(g.thens, f) }

// revert reverts the transitions of all calls of transit but the first n.
func (g *group) revert(n int) {
	for _, ts := range slices.Backward(g.transits[n:]) {
		for i := range ts {
			ts[i].revert(g.index)
		}
	}
}

// transit adds transitions to the group, and returns how many deliveries it moves. It skips a delivery
// that has left the queue or the claim of its transition. A claim lasts until the commit is durable.
func (g *group) transit(ts []transition) (moved int) {
	var gone []ref
	lost := 0
	for i := range ts {
		t := &ts[i]
		switch {
		case t.put:
			t.moved = t.record.stored == noDedup || g.index.seen.Add(t.record.key, g.now)
		case t.id == 0:
			t.entry, t.moved = g.index.remove(t.from, t.rank)
		default:
			t.claim = g.index.claims[t.id]
			if t.moved = t.claim != nil && !t.claim.settled; t.moved {
				t.claim.settled = true
				t.entry, t.from.destination = t.claim.entry, t.claim.lane.name
				t.record.size = t.rest + uint32(t.entry.bytes())
				if t.record.kind == 0 {
					t.record.kind = waitingKind(t.claim.retry)
				}
				if t.record.kind == kindDelivered && (g.index.tight || g.index.history.bytes >= g.index.historyMost) {
					t.record, t.unkept = record{kind: kindGone}, true
				}
			}
		}
		if !t.moved {
			continue
		}
		moved++
		anew := !t.put && t.record.whole()
		if t.record.kind == kindGone || anew {
			gone = append(gone, ref{t.entry.seq, t.entry.put.seg})
		}
		if t.lost {
			lost++
		}
		if t.record.payload != nil {
			if t.record.seq = t.entry.seq; anew {
				t.record.seq = 0
			}
			g.add(&t.record)
		}
	}
	g.gone(gone, lost)
	g.transits = append(g.transits, ts)
	return moved
}

// errMaxBytes is the store.ErrQueueFull of a store that has reached its bound, and not of a full disk.
var errMaxBytes = fmt.Errorf("%w: MaxBytes is reached", store.ErrQueueFull)

// store adds puts to the group, unless the needed records would then exceed maxBytes.
func (g *group) store(ts []transition, maxBytes int64) error {
	had := g.bytes
	g.transit(ts)
	if bytes := g.bytes - had; maxBytes != store.Unlimited && bytes > 0 {
		switch {
		case bytes > maxBytes:
			return store.ErrTooLarge
		case g.index.segs.live()+g.index.tableBytes()+g.bytes > maxBytes:
			return errMaxBytes
		}
	}
	return nil
}

// remember adds records of kindKeys to the group.
func (g *group) remember(keys []record) {
	for i := range keys {
		r := &keys[i]
		g.add(r)
		g.then(func() { g.index.segs[r.pos.seg].keys += recordSize(len(r.payload)) })
	}
}

// move adds the copies of moves to the group. Then the segment from does not need the records any
// more. During the commit, Fetch may claim the deliveries.
func (g *group) move(moves []move, from *segment) {
	copied := make(map[uint64]*move) // by sequence number: moves has a delivery twice if it was returned meanwhile
	claimed := g.index.claimed()
	for i := range moves {
		if m := &moves[i]; m.copy.payload != nil && copied[m.entry.seq] == nil && g.index.locate(m, claimed) != nil {
			copied[m.entry.seq] = m
			g.add(&m.copy)
		}
	}
	g.then(func() {
		claimed := g.index.claimed()
		for _, m := range copied {
			e := g.index.locate(m, claimed)
			if e == nil { // Fetch has postponed the delivery, so the copy is of no use
				g.index.segs[m.copy.pos.seg].copied = true
				continue
			}
			g.index.count(e, -1)
			if m.copy.tag > 0 {
				*e = entryOf(&m.copy)
				from.copied = true
			} else { // the rest of the delivery is in another segment
				e.setState(&m.copy)
			}
			if e.due = m.entry.due; m.from.kind == kindBehind { // may differ from the one on the disk; see postpone
				e.state = m.entry.state
			}
			g.index.count(e, 1)
		}
	})
}
