package filequeue

import (
	"errors"
	"time"

	"github.com/hookferry/analytics/webhook"
)

// A move copies an entry to the active segment.
type move struct {
	entry
	from  where
	claim uint64 // if the delivery is claimed
	copy  record // without a payload if there is nothing to copy
}

// maxMove is the approximate number of bytes that a merge copies in one commit. After each commit
// the merge pauses movePace times as long as the commit took, so that callers have most of the
// disk's time.
const (
	maxMove  = 1 << 20
	movePace = 4
)

// merge copies the needed records of a segment to the active one. It may miss a delivery that
// changes meanwhile. Then the segment still has a needed record.
func (j *janitor) merge(g *segment) error {
	// An op of the same group could take an entry out of its queue, and put it back later in another
	// state. So the copies have groups to themselves.
	do := func(o op) error { return j.writer.do(j.ctx, o, alone, false) }
	for more := true; more; {
		if err := do(func(group *group) error { more = group.moveSettings(g); return nil }); err != nil {
			return err
		}
	}
	lost := func(m *move, d *webhook.DeadLetter, cause error) {
		j.lose(d, m.seq, cause, leaving(m.from, m.point()))
	}
	return j.copyAll(j.index.moves(g), g, lost, func(some []move) error {
		began := time.Now()
		err := do(func(group *group) error { group.move(some, g); return nil })
		now := time.Now()
		j.sleep(now.Add(movePace*now.Sub(began)), nil)
		return err
	})
}

// moves returns a move for each entry that has a record in the segment g.
func (x *index) moves(g *segment) (moves []move) {
	add := func(m move) {
		if m.put.seg == g.number || m.units > 0 && m.state.seg == g.number {
			moves = append(moves, m)
		}
	}
	x.mu.Lock()
	needed := g.live > 0
	for _, c := range x.claims {
		add(move{entry: c.entry, from: where{waitingKind(c.retry), c.lane.name}, claim: c.id})
	}
	x.mu.Unlock()
	if needed {
		x.visit(func(w where, e entry) { add(move{entry: e, from: w}) })
	}
	return moves
}

// copyAll makes the copies of moves, about maxMove bytes at a time, and passes the moves to commit.
// A copy is a whole record, unless the segment g is not nil and does not have the whole record. It
// calls lost for an unclaimed delivery that cannot be read.
func (r *reader) copyAll(moves []move, g *segment, lost func(*move, *webhook.DeadLetter, error), commit func([]move) error) error {
	for n, size := 0, int64(0); len(moves) > 0; moves, n, size = moves[n:], 0, 0 {
		for ; n < len(moves) && size < maxMove; n++ {
			size += moves[n].total()
		}
		some := moves[:n]
		var pins []pinned
		r.index.mu.Lock()
		for i := range some {
			if e := r.index.locate(&some[i]); e != nil {
				pins = append(pins, r.index.segs.pin(*e, i))
			}
		}
		r.index.mu.Unlock()
		var err error
		r.load(pins, func(p *pinned, h *header, d *webhook.DeadLetter, lerr error) {
			m := &some[p.i]
			if errors.Is(lerr, errDamaged) && m.claim == 0 {
				lost(m, d, lerr)
				return
			}
			whole := g == nil || m.put.seg == g.number
			if lerr == nil {
				m.copy, lerr = deliveryRecord(nil, m.from.kind, d, whole, int64(len(d.Body)))
			}
			if lerr != nil {
				err = lerr
				return
			}
			m.copy.seq, m.copy.size = m.seq, uint32(m.entry.bytes()) // the attempts may be missing
			if whole {
				m.copy.key, m.copy.stored = h.key, h.stored
			}
		})
		if err == nil {
			err = commit(some)
		}
		if err != nil {
			return err
		}
		clear(some)
	}
	return nil
}

// locate returns the entry of a move in the index, or nil if the entry has changed.
func (x *index) locate(m *move) *entry {
	e := x.queue(m.from).at(m.point())
	if c := x.claims[m.claim]; c != nil {
		e = &c.entry
	}
	if e == nil || *e != m.entry {
		return nil
	}
	return e
}

// move adds the copies of moves to the group. Then the segment from does not need the records any
// more.
func (g *group) move(moves []move, from *segment) {
	for i := range moves {
		m := &moves[i]
		if m.copy.payload == nil || g.locate(m) == nil {
			continue
		}
		g.add(&m.copy)
		g.then(func() {
			e := g.locate(m)
			if e == nil { // the delivery is in moves twice, because it was returned while they were listed
				return
			}
			g.count(e, -1)
			if m.copy.whole() {
				*e = entryOf(&m.copy)
				from.copied = true
			} else {
				e.setState(&m.copy)
			}
			e.due = m.due // may differ from the one on the disk; see postpone
			g.count(e, 1)
		})
	}
}
