package filequeue

import (
	"context"
	"errors"
	"hash/crc32"
	"slices"
	"time"
)

// A move copies the records of an entry to the active segment. A put is always copied together
// with the state behind it, as Open takes the first of both that it comes to, from the end.
type move struct {
	was  entry
	kind kind // of the state, or of the only record
	dest string
	name string
	// find returns the entry, nil if it is not in the index any more. While ops are planned
	// it does not find what an op before is about to settle.
	find   func(x *index, planning bool) *entry
	copies []record
}

// maxMove is about how many bytes a merge copies in one commit. Then it pauses for movePace times as
// long as that took, so that others have most of the disk.
const (
	maxMove  = 1 << 20
	movePace = 4
)

// merge copies what is needed of a segment to the active one, so that it can be removed.
func (j *janitor) merge(ctx context.Context, g *segment) error {
	moves := j.moves(g.number)
	if len(moves) == 0 {
		return errNoMoves
	}
	for len(moves) > 0 {
		began := time.Now()
		var some []*move
		size := int64(0)
		for len(moves) > 0 && size < maxMove {
			m := moves[0]
			moves = moves[1:]
			if err := j.copy(m, g.number); err != nil {
				return err
			}
			for i := range m.copies {
				size += recordSize(len(m.copies[i].payload))
			}
			some = append(some, m)
		}
		if err := j.writer.do(ctx, func(group *group) error { group.move(g.number, some); return nil }, size, false); err != nil {
			return err
		}
		if took := time.Since(began); len(moves) > 0 && took > 0 {
			t := time.NewTimer(movePace * took)
			select {
			case <-t.C:
			case <-ctx.Done():
				t.Stop()
				return ctx.Err()
			}
		}
	}
	return nil
}

// copy reads the records that a move copies. There are none if they are elsewhere by now.
func (j *janitor) copy(m *move, from uint32) error {
	e := &m.was
	read := func(s summary, at place) error {
		g := j.index.pinned(at.seg)
		if g == nil {
			return errGone
		}
		defer g.unpin()
		b, h, err := g.read(at.off, int(s.size), s.seq, nil)
		if err != nil && !errors.Is(err, errDamaged) {
			return err
		}
		r := record{summary: summary{kind: h.kind, seq: s.seq, user: h.user}, payload: b, sum: h.sum}
		if err != nil || r.summarize(b) != nil {
			// That is said when it is read for its own sake. The copy stays damaged.
			r.summary, r.sum = s, ^crc32.Checksum(b, castagnoli)
		}
		r.size = uint32(len(b))
		m.copies = append(m.copies, r)
		return nil
	}
	var err error
	if e.put.seg == from {
		s := summary{kind: kindPut, seq: e.seq, size: e.size, due: e.due, body: uint32(e.bytes()), retry: m.kind == kindRetry, dest: m.dest, name: m.name}
		if m.kind >= kindGone {
			s.kind = m.kind
		}
		err = read(s, e.put)
	}
	if err == nil && e.units > 0 {
		err = read(summary{kind: m.kind, seq: e.seq, size: 8*uint32(e.units) - recordHeader, due: e.due, bytes: e.bytes()}, e.state)
	}
	if errors.Is(err, errGone) {
		m.copies, err = nil, nil
	}
	return err
}

// errNoMoves says that what a segment is needed for is on the move elsewhere.
var errNoMoves = errors.New("nothing to copy")

var errGone = errors.New("the segment is gone")

// move copies records of a segment.
func (g *group) move(from uint32, moves []*move) {
	var refs []ref
	for _, m := range moves {
		e := m.find(g.index, true)
		if e == nil || !m.same(e) || len(m.copies) == 0 {
			continue
		}
		for i := range m.copies {
			g.add(&m.copies[i])
		}
		if m.was.put.seg == from {
			refs = []ref{{0, from}}
		}
		g.then(func(seg *segment) {
			if e := m.find(g.index, false); e != nil && m.same(e) {
				m.apply(g.index, e, from, seg)
			}
		})
	}
	g.list(kindGone, refs)
}

// apply has an entry point to the copies.
func (m *move) apply(x *index, e *entry, from uint32, seg *segment) {
	x.segs.count(e, -1)
	copies := m.copies
	if e.put.seg == from {
		e.put, copies = place{seg.number, copies[0].off}, copies[1:]
	}
	if len(copies) > 0 {
		e.state = place{seg.number, copies[0].off}
	}
	x.segs.count(e, 1)
}

// same reports whether the records of an entry are where they were.
func (m *move) same(e *entry) bool {
	return e.put == m.was.put && e.units == m.was.units && e.state == m.was.state
}

// moves returns what a merge of a segment has to copy. It holds the lock for a part of the index
// at a time.
func (j *janitor) moves(from uint32) (moves []*move) {
	isIn := func(e *entry) bool { return e.put.seg == from || e.units > 0 && e.state.seg == from }
	add := func(m move) {
		if isIn(&m.was) {
			moves = append(moves, &m)
		}
	}
	j.index.mu.Lock()
	x := j.index
	var lanes []string
	for name := range x.lanes {
		lanes = append(lanes, name)
	}
	for _, c := range x.claims.byID {
		add(move{was: c.entry, kind: waitingKind(c.retry), dest: c.lane.name, find: findWaiting(c.lane.name, c.retry, c.point())})
	}
	for _, e := range x.settings {
		add(move{was: e.entry, kind: kindSetting, name: e.Name, find: func(x *index, _ bool) *entry {
			if i, found := x.settings.find(e.Name); found {
				return &x.settings[i].entry
			}
			return nil
		}})
	}
	for _, k := range x.keys {
		add(move{was: k.entry, kind: kindKeys, find: func(x *index, _ bool) *entry {
			if i := slices.IndexFunc(x.keys, func(now remembered) bool { return now.seq == k.seq }); i >= 0 {
				return &x.keys[i].entry
			}
			return nil
		}})
	}
	for _, e := range x.lost {
		add(move{was: e, kind: kindLost, find: func(x *index, _ bool) *entry {
			return &x.lost[slices.IndexFunc(x.lost, func(now entry) bool { return now.seq == e.seq })]
		}})
	}
	j.index.mu.Unlock()
	walk := func(like move, get func(x *index) *queue, find func(p point) func(x *index, planning bool) *entry) {
		const some = 4096 // entries under one lock
		var all []entry
		for last, more := firstPoint, true; more; {
			j.index.mu.Lock()
			all = all[:0]
			if q := get(x); q != nil {
				all = q.after(last, some, all)
			}
			j.index.mu.Unlock()
			for i := range all {
				if last = all[i].point(); isIn(&all[i]) {
					m := like
					m.was, m.find = all[i], find(last)
					moves = append(moves, &m)
				}
			}
			more = len(all) == some
		}
	}
	for _, name := range lanes {
		for _, retry := range []bool{false, true} {
			walk(move{kind: waitingKind(retry), dest: name}, func(x *index) *queue {
				if l := x.lanes[name]; l != nil {
					return l.queue(retry)
				}
				return nil
			}, func(p point) func(*index, bool) *entry { return findWaiting(name, retry, p) })
		}
	}
	for state, of := range map[kind]func(x *index) *queue{
		kindDead:      func(x *index) *queue { return &x.dead.queue },
		kindDelivered: func(x *index) *queue { return &x.history.queue },
	} {
		walk(move{kind: state}, of, func(p point) func(*index, bool) *entry {
			return func(x *index, _ bool) *entry { return of(x).at(p) }
		})
	}
	return moves
}

// findWaiting finds an entry that was in a queue, or claimed, in either.
func findWaiting(dest string, retry bool, p point) func(x *index, planning bool) *entry {
	return func(x *index, planning bool) *entry {
		l := x.lanes[dest]
		if l == nil {
			return nil
		}
		if e := l.queue(retry).at(p); e != nil {
			return e
		}
		for _, c := range x.claims.byID {
			if c.seq == p.seq && c.lane == l && !(planning && c.busy) {
				return &c.entry
			}
		}
		return nil
	}
}
