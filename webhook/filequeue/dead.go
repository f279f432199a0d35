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

// list reads the deliveries that get selects from the index. It leaves out those that are gone
// meanwhile, and sets aside those that cannot be read. last is the point of the last one.
func (s *Store) list(ctx context.Context, get func(x *index) []entry) (ds []webhook.DeadLetter, points []point, last point, err error) {
	if err := s.enter(ctx); err != nil {
		return nil, nil, last, err
	}
	defer s.calls.Done()
	s.mu.Lock()
	entries := get(s.index)
	pins := make([]pinned, len(entries))
	for i, e := range entries {
		pins[i] = s.segs.pin(e)
		last = e.point()
	}
	s.mu.Unlock()
	for i := range pins {
		p := &pins[i]
		var d webhook.DeadLetter
		if err == nil {
			err = p.load(&d)
		}
		p.release()
		switch {
		case errors.Is(err, errState):
			s.complain("the attempts of a delivery cannot be read", p.seq, &d, err)
			d.Due, d.Died = p.dueAt(), p.dueAt()
		case errors.Is(err, errDamaged):
			o := &forgetOp{kind: kindLost, points: []point{p.point()}, from: func(x *index) []*listed { return []*listed{&x.dead, &x.history} }}
			if s.writer.do(ctx, o, recordHeader, false); o.n > 0 {
				s.complain("a dead letter, or a delivery of the history, cannot be read, and is set aside", p.seq, &d, err)
			}
			err = nil
			continue
		case err != nil:
			continue
		}
		err = nil
		ds, points = append(ds, d), append(points, p.point())
	}
	if err != nil {
		return nil, nil, last, fmt.Errorf("filequeue: %w", err)
	}
	return ds, points, last, nil
}

// Dead implements webhook.Keeper.
func (s *Store) Dead(ctx context.Context, filter webhook.DeadFilter, after string) iter.Seq2[webhook.DeadLetter, error] {
	from := pointOf(after)
	if !filter.From.IsZero() && from.due < filter.From.UnixMicro() {
		from = point{filter.From.UnixMicro() - 1, lastPoint.seq - 1}
	}
	return storekit.Pages(keyAt(from), func(after string) (some []webhook.DeadLetter, next string, err error) {
		var found int
		ds, points, last, err := s.list(ctx, func(x *index) []entry {
			all := x.dead.after(pointOf(after), page, nil)
			found = len(all)
			return all
		})
		for i, d := range ds {
			if d.Key = keyAt(points[i]); filter.Match(&d) {
				some = append(some, d)
			}
		}
		if found == page && (filter.To.IsZero() || last.due < filter.To.UnixMicro()) {
			next = keyAt(last)
		}
		return some, next, err
	})
}

// DeadLetter implements webhook.Keeper.
func (s *Store) DeadLetter(ctx context.Context, key string) (webhook.DeadLetter, error) {
	ds, points, _, err := s.deadLetters(ctx, key)
	if err != nil || len(ds) == 0 {
		return webhook.DeadLetter{}, cmpErr(err, webhook.ErrNoDeadLetter)
	}
	ds[0].Key = keyAt(points[0])
	return ds[0], nil
}

// cmpErr returns the first error that is not nil.
func cmpErr(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// deadLetters reads the dead letters with these keys.
func (s *Store) deadLetters(ctx context.Context, keys ...string) ([]webhook.DeadLetter, []point, point, error) {
	return s.list(ctx, func(x *index) (all []entry) {
		for _, key := range keys {
			if e := x.dead.at(pointOf(key)); e != nil {
				all = append(all, *e)
			}
		}
		return all
	})
}

// Revive implements webhook.Keeper.
func (s *Store) Revive(ctx context.Context, keys ...string) (n int, err error) {
	keys = slices.Compact(slices.Sorted(slices.Values(keys)))
	for chunk := range slices.Chunk(append(keys, ""), page) {
		ds, points, _, err := s.deadLetters(ctx, chunk...)
		if err != nil {
			return n, err
		}
		o := &reviveOp{}
		size := int64(0)
		for i := range ds {
			d := &ds[i]
			d.Due, d.Expires, d.Tries, d.Closed, d.Reason, d.Died = s.Now(), time.Time{}, 0, nil, "", time.Time{}
			payload, err := statePayload(nil, d, d.Size())
			if err != nil {
				return n, fmt.Errorf("filequeue: %w", err)
			}
			r := revival{record: newRecord(kindFresh, payload), point: points[i], dest: d.Destination, body: int64(len(d.Body))}
			r.user = userHash(d.User)
			r.summarizeState(d, d.Size())
			o.revivals = append(o.revivals, r)
			size += recordSize(len(payload))
		}
		if len(ds) == 0 {
			continue
		}
		if err := s.do(ctx, o, size); err != nil {
			return n, err
		}
		n += o.n
		s.notify()
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
	entry entry // as it is dead
	found bool
}

// A reviveOp makes fresh deliveries of dead letters.
type reviveOp struct {
	revivals []revival
	n        int
}

func (o *reviveOp) plan(g *group) error {
	for i := range o.revivals {
		r := &o.revivals[i]
		if r.entry, r.found = g.dead.remove(r.point); r.found {
			r.seq = r.entry.seq
			g.add(&r.record)
		}
	}
	return nil
}

func (o *reviveOp) undo(x *index) {
	for _, r := range o.revivals {
		if r.found {
			x.dead.push(r.entry)
		}
	}
}

func (o *reviveOp) apply(x *index, seg *segment) {
	for i := range o.revivals {
		r := &o.revivals[i]
		if !r.found {
			continue
		}
		e := r.entry
		x.segs.count(&e, -1)
		e.setState(seg.number, &r.summary)
		e.setBytes(r.body)
		x.segs.count(&e, 1)
		l := x.lane(r.dest)
		x.enqueue(l, e, false)
		x.tell(l)
		o.n++
	}
}

// Discard implements webhook.Keeper.
func (s *Store) Discard(ctx context.Context, keys ...string) (int, error) {
	o := &forgetOp{kind: kindGone, from: func(x *index) []*listed { return []*listed{&x.dead} }}
	for _, key := range keys {
		o.points = append(o.points, pointOf(key))
	}
	err := s.do(ctx, o, int64(recordHeader+16*len(keys)))
	return o.n, err
}

// A forgetOp removes dead letters, or what is in the history.
type forgetOp struct {
	kind   kind // kindGone or kindLost
	points []point
	from   func(x *index) []*listed
	n      int // how many there were

	taken []entry
	lists []*listed // that each was in
	gone  record
}

func (o *forgetOp) plan(g *group) error {
	o.taken, o.lists = nil, nil
	var refs []ref
	for _, p := range o.points {
		for _, l := range o.from(g.index) {
			if e, ok := l.remove(p); ok {
				o.taken, o.lists = append(o.taken, e), append(o.lists, l)
				refs = append(refs, ref{e.seq, e.put.seg})
				break
			}
		}
	}
	if len(refs) > 0 {
		o.gone = listRecord(o.kind, refs)
		g.add(&o.gone)
	}
	return nil
}

func (o *forgetOp) undo(*index) {
	for i, e := range o.taken {
		o.lists[i].push(e)
	}
}

func (o *forgetOp) apply(x *index, seg *segment) {
	for i := range o.taken {
		x.segs.count(&o.taken[i], -1)
	}
	o.n = len(o.taken)
	if o.kind == kindLost {
		x.addLost(&o.gone, seg)
	}
}
