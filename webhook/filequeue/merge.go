package filequeue

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// A move copies an entry, of a delivery or of a setting, to the active segment.
type move struct {
	entry
	from where  // or the queue to which the delivery may return, if it is claimed; of a setting, its name
	copy record // without a payload if there is nothing to copy; of a setting, moves makes it
}

// maxMove is about how many bytes a merge copies in one commit. Then it pauses movePace times as long
// as the commit took, so that callers have most of the disk's time.
const (
	maxMove  = 1 << 20
	movePace = 4
)

// merge copies the needed records of a segment to the active one. It may miss a delivery that changes
// meanwhile. The error is errUnread if the disk cannot read one.
func (j *janitor) merge(g *segment) error {
	lost := func(m *move, d *store.Ended, cause error) {
		j.lose(d, m.seq, cause, leaving(m.from, m.point()))
	}
	// An op of the same group could take an entry out of its queue, and put it back later in another
	// state. So the copies have groups to themselves.
	return j.copyAll(j.index.moves(g), g, lost, func(some []move) error {
		began := time.Now()
		err := j.writer.do(j.ctx, func(group *group) error { group.move(some, g); return nil }, alone, false)
		now := time.Now()
		j.sleep(now.Add(movePace*now.Sub(began)), nil)
		return err
	})
}

// moves returns a move for each entry that has a record in the segment g, in the order of their
// sequence numbers.
func (x *index) moves(g *segment) (moves []move) {
	add := func(m move) {
		if m.put.seg == g.number || m.units > 0 && m.state.seg == g.number {
			moves = append(moves, m)
		}
	}
	x.mu.Lock()
	needed := g.live > 0
	for _, s := range x.settings {
		if s.entry.put.seg == g.number {
			moves = append(moves, move{entry: s.entry, from: where{kindSetting, s.Name}, copy: settingRecord(&s.Setting)})
		}
	}
	for _, c := range x.claims {
		add(move{entry: c.entry, from: where{waitingKind(c.retry), c.lane.name}})
	}
	x.mu.Unlock()
	if needed {
		x.visit(func(w where, e entry) { add(move{entry: e, from: w}) })
	}
	slices.SortStableFunc(moves, func(a, b move) int { return cmp.Compare(a.seq, b.seq) })
	return moves
}

// copyAll makes the copies of moves, about maxMove bytes at a time, and passes the moves to commit. If
// g is not nil, a copy is whole only if g has the whole record. lost gets each damaged delivery.
func (r *reader) copyAll(moves []move, g *segment, lost func(*move, *store.Ended, error), commit func([]move) error) error {
	for n, size := 0, int64(0); len(moves) > 0; moves, n, size = moves[n:], 0, 0 {
		for ; n < len(moves) && size < maxMove; n++ {
			size += moves[n].total()
		}
		some := moves[:n]
		var pins []pinned
		r.index.mu.Lock()
		claimed := r.index.claimed()
		for i := range some {
			if m := &some[i]; m.copy.payload == nil && r.index.locate(m, claimed) != nil {
				pins = append(pins, r.index.segs.pin(m.entry, i))
			}
		}
		r.index.mu.Unlock()
		var err error
		r.load(pins, func(p *pinned, h *header, d *store.Ended, lerr error) {
			m := &some[p.i]
			if errors.Is(lerr, errDamaged) {
				lost(m, d, lerr)
				return
			}
			whole := g == nil || m.put.seg == g.number
			if lerr == nil {
				m.copy, lerr = deliveryRecord(nil, m.from.kind, d, whole)
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
		if err != nil {
			return fmt.Errorf("%w: %w", errUnread, err)
		}
		if err := commit(some); err != nil {
			return err
		}
		clear(some)
	}
	return nil
}

// locate returns the entry of a move in the index, or nil if the entry has changed. The argument
// claimed has the result of index.claimed.
func (x *index) locate(m *move, claimed map[uint64]*claim) (e *entry) {
	if c := claimed[m.seq]; c != nil {
		e = &c.entry
	} else if m.from.kind != kindSetting {
		e = x.queue(m.from).at(m.point())
	} else if s := x.settings[m.from.destination]; s != nil {
		e = &s.entry
	}
	if e == nil || *e != m.entry {
		return nil
	}
	return e
}

// move adds the copies of moves to the group. Then the segment from does not need the records any
// more. During the commit, Fetch may claim the deliveries.
func (g *group) move(moves []move, from *segment) {
	copied := make(map[uint64]*move) // by sequence number: moves has a delivery twice if it was returned meanwhile
	claimed := g.claimed()
	for i := range moves {
		if m := &moves[i]; m.copy.payload != nil && copied[m.seq] == nil && g.locate(m, claimed) != nil {
			copied[m.seq] = m
			g.add(&m.copy)
		}
	}
	g.then(func() {
		claimed := g.claimed()
		for _, m := range copied {
			e := g.locate(m, claimed)
			if e == nil { // Fetch has postponed the delivery, so the copy is of no use
				g.segs[m.copy.seg].copied = true
				continue
			}
			g.count(e, -1)
			if m.copy.tag > 0 {
				*e = entryOf(&m.copy)
				from.copied = true
			} else { // the rest of the delivery is in another segment
				e.setState(&m.copy)
			}
			e.due = m.due // may differ from the one on the disk; see postpone
			g.count(e, 1)
		}
	})
}
