package filequeue

import (
	"context"
	"errors"
	"fmt"

	"github.com/hookferry/analytics/webhook"
)

// A traced is a delivery of a user whose records Erase has found.
type traced struct {
	seq     uint64
	dest    string
	latest  summary // of its put, or its latest state
	records []tracedRecord
	claimed bool
}

type tracedRecord struct {
	place
	size uint32 // of the payload
}

// maxErased is how many deliveries are erased in one commit.
const maxErased = 1024

// Erase implements webhook.Keeper. It writes zeros over the bodies and attempts, wherever in the
// segments they are, also over those of deliveries that are done, and returns when that is on
// the disk.
func (s *Store) Erase(ctx context.Context, user string) (erased, claimed int, err error) {
	if user == "" {
		return 0, 0, errors.New("filequeue: erasure without a user")
	}
	if err := s.enter(ctx); err != nil {
		return 0, 0, err
	}
	defer s.calls.Done()
	var all []*traced
	known := make(map[uint64]bool) // those in all
	for again := true; again; {
		again = false
		found, err := s.trace(ctx, user, known)
		if err != nil {
			return erased, 0, fmt.Errorf("filequeue: %w", err)
		}
		for len(found) > 0 {
			some := found[:min(len(found), maxErased)]
			found = found[len(some):]
			changed := make([]bool, len(some))
			err := s.writer.do(ctx, func(g *group) error { g.erase(some, changed, &erased); return nil }, int64(recordHeader+16*len(some)), false)
			for i, t := range some {
				if err == nil && changed[i] {
					again = true // something happened to it since it was found
				} else if err == nil {
					all = append(all, t)
					known[t.seq] = true
				}
			}
			if err != nil {
				return erased, 0, errors.Join(err, s.blank(all))
			}
		}
	}
	for _, t := range all {
		if t.claimed {
			claimed++
		}
	}
	if err := s.blank(all); err != nil {
		return erased, claimed, fmt.Errorf("filequeue: %w", err)
	}
	return erased, claimed, nil
}

// trace finds the deliveries of a user, but those that are known.
func (s *Store) trace(ctx context.Context, user string, known map[uint64]bool) ([]*traced, error) {
	hash := userHash(user)
	bySeq := make(map[uint64]*traced)
	gone := make(seqSet)
	s.mu.Lock()
	numbers := s.segs.numbers()
	s.mu.Unlock()
	for _, n := range numbers {
		g := s.pinSegment(n)
		if g == nil {
			continue // was merged: what was in it comes later
		}
		sums, err := s.summaries(g)
		for i := range sums {
			m := &sums[i]
			if m.kind == kindGone || m.kind == kindLost {
				for _, r := range m.refs {
					gone.add(r.seq)
				}
			}
			if m.kind != kindPut && !m.kind.state() || m.user != hash || known[m.seq] {
				continue
			}
			t := bySeq[m.seq]
			if t == nil {
				t = &traced{seq: m.seq}
				bySeq[m.seq] = t
			}
			t.records = append(t.records, tracedRecord{place{n, m.off}, m.size})
			if m.kind != kindPut || t.latest.kind == 0 {
				t.latest = *m
			}
			if m.kind == kindPut && t.dest == "" {
				t.dest = s.destinationOf(g, m, user)
			}
		}
		g.unpin()
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return nil, err
		}
	}
	var found []*traced
	for seq, t := range bySeq {
		// Another user may have the same hash. What is gone has only bytes left.
		if t.dest == "" {
			continue
		}
		if gone.has(seq) {
			t.latest.kind = kindGone
		}
		found = append(found, t)
	}
	return found, nil
}

// pinSegment returns a segment, which the caller unpins, nil if it is gone.
func (s *Store) pinSegment(n uint32) *segment {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.segs.all[n]
	if g != nil {
		g.pins.Add(1)
	}
	return g
}

// destinationOf returns the destination of a put if it is the user's, or "".
func (s *Store) destinationOf(g *segment, m *summary, user string) string {
	b, _, err := g.read(m.off, int(m.size), m.seq, nil)
	if err != nil {
		return ""
	}
	var d webhook.Delivery
	if err := readPut(b, &d); err != nil || d.User != user {
		return ""
	}
	return d.Destination
}

// blank writes zeros over the payloads of what was erased. A put whose payload cannot be read is
// not missed by Open, as it is gone.
func (s *Store) blank(all []*traced) error {
	touched := make(map[uint32]*segment)
	defer func() {
		for _, g := range touched {
			g.unpin()
		}
	}()
	for _, t := range all {
		if t.claimed {
			continue
		}
		for _, r := range t.records {
			g := touched[r.seg]
			if g == nil {
				if g = s.pinSegment(r.seg); g == nil {
					continue // was removed, with all that was in it
				}
				touched[r.seg] = g
			}
			from := int64(r.off) + recordHeader
			if err := zero(g.file, from, from+int64(r.size)); err != nil {
				return err
			}
		}
	}
	for _, g := range touched {
		if err := g.file.Sync(); err != nil {
			return err
		}
	}
	return nil
}

// erase removes deliveries of a user from the index. changed says which are elsewhere than they were
// found, n how many there were, once the op is done.
func (g *group) erase(all []*traced, changed []bool, n *int) {
	clear(changed)
	claims := g.claims.bySeq()
	var refs []ref
	for i, t := range all {
		if t.latest.kind == kindGone {
			continue
		}
		if claims[t.seq] != nil {
			t.claimed = true
			continue
		}
		e, lane, ok := g.takeTraced(t)
		if !ok {
			changed[i] = true
			continue
		}
		// A merge may have copied it since.
		t.records = append(t.records, tracedRecord{e.put, e.size})
		if e.units > 0 {
			t.records = append(t.records, tracedRecord{e.state, 8*uint32(e.units) - recordHeader})
		}
		refs = append(refs, ref{t.seq, e.put.seg})
		g.then(func(*segment) {
			g.segs.count(&e, -1)
			if lane != nil {
				g.dequeue(lane)
			}
		})
	}
	g.list(kindGone, refs)
	g.then(func(*segment) { *n += len(refs) })
}

// takeTraced takes the entry of a delivery out of where it was found to be. The lane is nil if it
// does not wait.
func (g *group) takeTraced(t *traced) (e entry, l *lane, ok bool) {
	p := point{t.latest.due, t.seq}
	k := t.latest.kind
	if k == kindDead || k == kindDelivered {
		e, ok = g.take(g.index.list(k), p)
		return e, nil, ok
	}
	if l = g.lanes[t.dest]; l == nil {
		return e, nil, false
	}
	e, ok = g.take(l.queue(k == kindRetry || k == kindPut && t.latest.retry), p)
	return e, l, ok
}
