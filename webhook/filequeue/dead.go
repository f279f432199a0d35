package filequeue

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/storekit"
)

// page is how many deliveries of a list are read at once.
const page = 256

// A found is a delivery that was read, and where the index has it.
type found struct {
	webhook.DeadLetter
	at point
}

// list reads entries of the index. It leaves out those that are gone meanwhile, and sets aside
// those that cannot be read.
func (s *Store) list(ctx context.Context, get func(x *index) []entry) (all []found, err error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.calls.Done()
	s.index.mu.Lock()
	entries := get(s.index)
	pins := make([]pinned, len(entries))
	for i, e := range entries {
		pins[i] = s.index.segs.pin(e)
	}
	s.index.mu.Unlock()
	for i := range pins {
		p := &pins[i]
		f := found{at: p.point()}
		if err == nil {
			err = p.load(&f.DeadLetter)
		}
		p.release()
		switch {
		case errors.Is(err, errState):
			s.complaints.add("the attempts of a delivery cannot be read", p.seq, &f.DeadLetter, err)
			f.Due, f.Died = p.dueAt(), p.dueAt()
		case errors.Is(err, errDamaged):
			n := 0
			s.writer.do(ctx, func(g *group) error {
				g.forget(kindLost, []point{f.at}, &n, &g.dead, &g.history)
				return nil
			}, recordHeader, false)
			if n > 0 {
				s.complaints.add("a dead letter, or a delivery of the history, cannot be read, and is set aside", p.seq, &f.DeadLetter, err)
			}
			err = nil
			continue
		case err != nil:
			continue
		}
		err = nil
		f.Key = keyAt(f.at)
		all = append(all, f)
	}
	if err != nil {
		return nil, fmt.Errorf("filequeue: %w", err)
	}
	return all, nil
}

// pages reads the entries behind a point, of which get returns the next page.
func (s *Store) pages(ctx context.Context, from point, get func(x *index, from point) []entry) iter.Seq2[found, error] {
	return func(yield func(found, error) bool) {
		last := from
		storekit.Pages("more", func(string) (all []found, next string, err error) {
			all, err = s.list(ctx, func(x *index) []entry {
				entries := get(x, last)
				if len(entries) > 0 {
					last, next = entries[len(entries)-1].point(), "more"
				}
				return entries
			})
			return all, next, err
		})(yield)
	}
}

// Dead implements webhook.Keeper.
func (s *Store) Dead(ctx context.Context, filter webhook.DeadFilter, after string) iter.Seq2[webhook.DeadLetter, error] {
	from, next := pointOf(after), (*queue).after
	if !filter.From.IsZero() && from.due < filter.From.UnixMicro() {
		from = point{filter.From.UnixMicro() - 1, lastPoint.seq - 1}
	}
	if filter.NewestFirst {
		from, next = newest(after, filter.To), (*queue).before
	}
	return func(yield func(webhook.DeadLetter, error) bool) {
		for d, err := range s.pages(ctx, from, func(x *index, from point) []entry { return next(&x.dead.queue, from, page, nil) }) {
			if err == nil && !filter.NewestFirst && !filter.To.IsZero() && d.at.due >= filter.To.UnixMicro() {
				return
			}
			if err == nil && filter.NewestFirst && !filter.From.IsZero() && d.at.due < filter.From.UnixMicro() {
				return
			}
			if (err != nil || filter.Match(&d.DeadLetter)) && !yield(d.DeadLetter, err) {
				return
			}
		}
	}
}

// DeadLetter implements webhook.Keeper.
func (s *Store) DeadLetter(ctx context.Context, key string) (webhook.DeadLetter, error) {
	all, err := s.list(ctx, func(x *index) []entry { return x.dead.named(key) })
	switch {
	case err != nil:
		return webhook.DeadLetter{}, err
	case len(all) == 0:
		return webhook.DeadLetter{}, webhook.ErrNoDeadLetter
	}
	return all[0].DeadLetter, nil
}

// named returns the entries with these keys.
func (q *queue) named(keys ...string) (all []entry) {
	for _, key := range keys {
		if e := q.at(pointOf(key)); e != nil {
			all = append(all, *e)
		}
	}
	return all
}

// Revive implements webhook.Keeper.
func (s *Store) Revive(ctx context.Context, keys ...string) (n int, err error) {
	keys = slices.Compact(slices.Sorted(slices.Values(keys)))
	for chunk := range slices.Chunk(append(keys, ""), page) {
		ds, err := s.list(ctx, func(x *index) []entry { return x.dead.named(chunk...) })
		if err != nil {
			return n, err
		}
		var rs []revival
		size := int64(0)
		for i := range ds {
			d := &ds[i].DeadLetter
			d.Due, d.Expires, d.Tries, d.Closed, d.Reason, d.Died = s.Now(), time.Time{}, 0, nil, "", time.Time{}
			state, err := stateRecord(kindFresh, d, d.Size())
			if err != nil {
				return n, err
			}
			rs = append(rs, revival{record: state, point: ds[i].at, dest: d.Destination, body: int64(len(d.Body))})
			size += recordSize(len(state.payload))
		}
		if len(ds) == 0 {
			continue
		}
		if err := s.do(ctx, func(g *group) error { g.revive(rs, &n); return nil }, size); err != nil {
			return n, err
		}
		s.changed.give()
	}
	return n, nil
}

// do has an op done that may take the reserve.
func (s *Store) do(ctx context.Context, o op, size int64) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.calls.Done()
	return s.writer.do(ctx, o, size, false)
}

// A revival is a dead letter about to be fresh.
type revival struct {
	record
	point point
	dest  string
	body  int64
}

// revive makes fresh deliveries of dead letters. It returns how many there were once the op is done.
func (g *group) revive(rs []revival, n *int) {
	for i := range rs {
		r := &rs[i]
		e, ok := g.take(&g.dead, r.point)
		if !ok {
			continue
		}
		r.seq = e.seq
		g.add(&r.record)
		g.then(func(seg *segment) {
			g.restate(&e, seg, &r.summary, r.body)
			l := g.lane(r.dest)
			g.enqueue(l, e, false)
			g.tell(l)
			*n++
		})
	}
}

// Discard implements webhook.Keeper.
func (s *Store) Discard(ctx context.Context, keys ...string) (n int, err error) {
	points := make([]point, len(keys))
	for i, key := range keys {
		points[i] = pointOf(key)
	}
	err = s.do(ctx, func(g *group) error { g.forget(kindGone, points, &n, &g.dead); return nil }, int64(recordHeader+16*len(keys)))
	return n, err
}

// forget removes what is at these points of one of the lists. k is kindGone or kindLost. n is how
// many there were, once the op is done.
func (g *group) forget(k kind, points []point, n *int, from ...*listed) {
	var refs []ref
	for _, p := range points {
		for _, l := range from {
			if e, ok := g.take(l, p); ok {
				refs = append(refs, ref{e.seq, e.put.seg})
				g.then(func(*segment) { g.segs.count(&e, -1) })
				break
			}
		}
	}
	gone := g.list(k, refs)
	g.then(func(seg *segment) {
		*n = len(refs)
		g.addLost(gone, seg)
	})
}

// take takes an entry out of a queue until the op is undone.
func (g *group) take(from interface {
	remove(point) (entry, bool)
	push(entry)
}, p point) (entry, bool) {
	e, ok := from.remove(p)
	if ok {
		g.undo(func() { from.push(e) })
	}
	return e, ok
}
