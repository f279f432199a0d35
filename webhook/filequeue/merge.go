package filequeue

import (
	"errors"
	"hash/crc32"
	"time"
)

// A move copies records of an entry to the active segment. A put is never copied without the state
// record of its delivery: Open reads the log backwards and must find the state before the put. So
// the copy of the state follows the copy of the put.
type move struct {
	entry
	from   where
	copies []record
}

// maxMove is the approximate number of bytes that a merge copies in one commit. After each commit
// the merge pauses movePace times as long as the commit took, so that callers have most of the
// disk's time.
const (
	maxMove  = 1 << 20
	movePace = 4
)

// merge copies the needed records of a segment to the active one.
func (j *janitor) merge(g *segment) error {
	for moves := j.index.moves(g); len(moves) > 0; {
		began := time.Now()
		n, size := 0, int64(0)
		for ; n < len(moves) && size < maxMove; n++ {
			if err := j.copy(&moves[n], g.number); err != nil {
				return err
			}
			for i := range moves[n].copies {
				size += recordSize(len(moves[n].copies[i].payload))
			}
		}
		some := moves[:n]
		if err := j.writer.do(j.ctx, func(group *group) error { group.move(g, some); return nil }, max(size, alone), false); err != nil {
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

// moves returns a move for each entry that has a record in the segment from.
func (x *index) moves(from *segment) (moves []move) {
	x.mu.Lock()
	needed := from.live > 0
	x.mu.Unlock()
	if !needed {
		return nil
	}
	x.visit(func(w where, e entry) {
		if e.put.seg == from.number || e.units > 0 && e.state.seg == from.number {
			moves = append(moves, move{entry: e, from: w})
		}
	})
	return moves
}

// locate returns the entry of a move in the index, or nil if the entry has changed. The delivery
// may be in another queue than at the call of moves: it was claimed, or its claim was returned.
func (x *index) locate(m *move) *entry {
	for _, k := range []kind{m.from.kind, kindFresh, kindRetry, claimed} {
		if e := x.queue(where{k, m.from.destination}).at(m.point()); e != nil && *e == m.entry {
			return e
		}
	}
	return nil
}

// copy reads into m.copies the records that m copies: the put if it is in the segment with the
// number from, and the state record, if there is one, from any segment.
func (j *janitor) copy(m *move, from uint32) error {
	p := j.index.pin(m.entry)
	defer p.release()
	read := func(k kind, g *segment, at place, length int) error {
		if g == nil {
			return errBusy // the entry is out of date
		}
		r, err := g.read(at, length, m.seq, nil)
		if errors.Is(err, errDamaged) {
			// The checksum of the copy is wrong, too. The next call that reads this delivery writes
			// a log line.
			if r.kind == 0 {
				r.kind = k
			}
			r.seq, r.tag, r.length, r.sum = m.seq, 0, uint32(len(r.payload)), ^crc32.Checksum(r.payload, castagnoli)
			err = nil
		}
		m.copies = append(m.copies, r)
		return err
	}
	if m.entry.put.seg == from {
		k := kindPut
		if m.from.kind == kindSetting || m.from.kind == kindKeys {
			k = m.from.kind
		}
		if err := read(k, p.put, m.entry.put, int(m.length)); err != nil {
			return err
		}
	}
	if m.units > 0 {
		k := m.from.kind
		if k == claimed {
			k = kindFresh
		}
		return read(k, p.state, m.entry.state, m.stateLength())
	}
	return nil
}

// move adds the copies of moves to the group. An op can take an entry out of its queue until the
// commit, so locate might miss the entry. Therefore move must be the only op of its group.
func (g *group) move(from *segment, moves []move) {
	for i := range moves {
		m := &moves[i]
		if g.locate(m) == nil {
			continue
		}
		for i := range m.copies {
			g.add(&m.copies[i])
		}
		g.then(func(seg *segment) {
			e := g.locate(m)
			if e == nil {
				// The list of moves has this delivery twice, because it was claimed while the
				// entries were listed.
				return
			}
			g.segs.count(e, -1)
			copies := m.copies
			if e.put.seg == from.number {
				from.copied = true
				e.put, copies = place{seg.number, copies[0].off}, copies[1:]
			}
			if len(copies) > 0 {
				e.state = place{seg.number, copies[0].off}
			}
			g.segs.count(e, 1)
		})
	}
}
