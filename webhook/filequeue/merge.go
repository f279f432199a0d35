package filequeue

import (
	"errors"
	"slices"
	"time"

	"github.com/hookferry/analytics/webhook"
)

// A move copies an entry to the active segment. If the segment to be removed has the whole record,
// the copy is a whole record of the present state. If it has only the state record, that is copied.
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
	for moves := j.index.moves(g); len(moves) > 0; {
		began := time.Now()
		n, size := 0, int64(0)
		for ; n < len(moves) && size < maxMove; n++ {
			if err := j.read(&moves[n], g); err != nil {
				return err
			}
			size += recordSize(len(moves[n].copy.payload))
		}
		some := moves[:n]
		// An op of the same group could take an entry out of its queue, and put it back later in
		// another state. So the moves have a group to themselves.
		if err := j.writer.do(j.ctx, func(group *group) error { group.move(some, g); return nil }, max(size, alone), false); err != nil {
			return err
		}
		clear(some)
		if moves = moves[n:]; len(moves) > 0 {
			now := time.Now()
			j.sleep(now.Add(movePace*now.Sub(began)), nil)
		}
	}
	return nil
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

// read makes the copy of a move.
func (j *janitor) read(m *move, g *segment) (err error) {
	if m.from.kind == kindSetting {
		j.index.mu.Lock()
		defer j.index.mu.Unlock()
		if i := slices.IndexFunc(j.index.settings, func(s webhook.Setting) bool { return s.Version == m.seq }); i >= 0 {
			m.copy = settingRecord(&j.index.settings[i])
		}
		return nil
	}
	j.index.mu.Lock()
	e := j.index.locate(m)
	if e == nil {
		j.index.mu.Unlock()
		return nil
	}
	p := j.index.segs.pin(*e)
	j.index.mu.Unlock()
	defer p.release()
	var d webhook.DeadLetter
	h, err := j.load(&p, &d, nil)
	if errors.Is(err, errDamaged) && m.claim == 0 {
		j.lose(&d, m.seq, err, leaving(m.from, m.point()))
		return nil
	} else if err != nil {
		return err
	}
	whole := m.put.seg == g.number
	if m.copy, err = deliveryRecord(nil, m.from.kind, &d, whole, int64(len(d.Body))); err != nil {
		return err
	}
	m.copy.seq, m.copy.size = m.seq, uint32(m.bytes()) // the size would be another one if the attempts cannot be read
	if whole {
		m.copy.key, m.copy.stored = h.key, h.stored
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

// move adds the copies of moves to the group. Then the segment g does not need the records any
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
			if m.put.seg == from.number {
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
