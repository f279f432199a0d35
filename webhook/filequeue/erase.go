package filequeue

import (
	"context"
	"errors"
	"fmt"
	"slices"

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
	e := eraser{Store: s, user: user, known: make(map[uint64]bool)}
	err = errors.Join(e.remove(ctx), e.blank())
	for _, t := range e.all {
		if t.claimed {
			claimed++
		}
	}
	if err != nil {
		err = fmt.Errorf("filequeue: %w", err)
	}
	return e.erased, claimed, err
}

// An eraser erases the deliveries of a user.
type eraser struct {
	*Store
	user   string
	all    []*traced
	known  map[uint64]bool // the sequence numbers of all
	erased int
}

// remove removes the deliveries from the index, and notes in all where their bytes are.
func (e *eraser) remove(ctx context.Context) error {
	for again := true; again; {
		again = false
		found, err := e.trace(ctx)
		if err != nil {
			return err
		}
		for some := range slices.Chunk(found, maxErased) {
			changed := make([]bool, len(some))
			if err := e.writer.do(ctx, func(g *group) error { g.erase(some, changed, &e.erased); return nil }, int64(recordHeader+16*len(some)), false); err != nil {
				return err
			}
			for i, t := range some {
				if changed[i] {
					again = true // something happened to it since it was found
				} else {
					e.all = append(e.all, t)
					e.known[t.seq] = true
				}
			}
		}
	}
	return nil
}

// trace finds the deliveries, but those that are known.
func (e *eraser) trace(ctx context.Context) (found []*traced, err error) {
	hash := userHash(e.user)
	bySeq := make(map[uint64]*traced)
	gone := make(seqSet)
	e.index.mu.Lock()
	numbers := e.index.segs.numbers()
	e.index.mu.Unlock()
	for _, n := range numbers {
		g := e.index.pinned(n)
		if g == nil {
			continue // was merged: what was in it comes later
		}
		sums, err := e.index.summaries(e.disk, g)
		for i := range sums {
			m := &sums[i]
			if m.kind == kindGone || m.kind == kindLost {
				for _, r := range m.refs {
					gone.add(r.seq)
				}
			}
			if m.kind != kindPut && !m.kind.state() || m.user != hash || e.known[m.seq] {
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
				t.dest = e.destination(g, m)
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

// destination returns that of a put if it is the user's, or "".
func (e *eraser) destination(g *segment, m *summary) string {
	b, _, err := g.read(m.off, int(m.size), m.seq, nil)
	var d webhook.Delivery
	if err != nil || readPut(b, &d) != nil || d.User != e.user {
		return ""
	}
	return d.Destination
}

// blank writes zeros over the payloads of what was removed. A put whose payload cannot be read is
// not missed by Open, as it is gone.
func (e *eraser) blank() (err error) {
	touched := make(map[uint32]*segment)
	for _, t := range e.all {
		for _, r := range t.records {
			if t.claimed || err != nil {
				break
			}
			if touched[r.seg] == nil {
				if touched[r.seg] = e.index.pinned(r.seg); touched[r.seg] == nil {
					continue // was removed, with all that was in it
				}
			}
			from := int64(r.off) + recordHeader
			err = zero(touched[r.seg].file, from, from+int64(r.size))
		}
	}
	for _, g := range touched {
		if g == nil {
			continue
		}
		if err == nil {
			err = g.file.Sync()
		}
		g.unpin()
	}
	return err
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
		e, waits, ok := g.takeTraced(t)
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
			if waits {
				g.dequeue(g.lane(t.dest)) // which may have been removed and made anew
			}
		})
	}
	g.list(kindGone, refs)
	g.then(func(*segment) { *n += len(refs) })
}

// takeTraced takes the entry of a delivery out of where it was found to be.
func (g *group) takeTraced(t *traced) (e entry, waits, ok bool) {
	p := point{t.latest.due, t.seq}
	k := t.latest.kind
	if k == kindDead || k == kindDelivered {
		e, ok = g.take(g.index.list(k), p)
		return e, false, ok
	}
	l := g.lanes[t.dest]
	if l == nil {
		return e, true, false
	}
	e, ok = g.take(l.queue(k == kindRetry || k == kindPut && t.latest.retry), p)
	return e, true, ok
}
