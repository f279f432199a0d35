package filequeue

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/hookferry/analytics/webhook/store"
)

// page is how many deliveries of a list are read at once.
const page = 256

// read returns the deliveries of the entries that get returns. It leaves out those that were removed
// meanwhile or cannot be read. If the disk can read none of them, it returns an error.
func read(ctx context.Context, s *Store, get func(x *index) []entry) (all []store.Ended, err error) {
	if err := s.gate.Enter(ctx); err != nil {
		return nil, err
	}
	defer s.gate.Leave()
	s.index.mu.Lock()
	entries := get(s.index)
	pins := make([]pinned, len(entries))
	for i, e := range entries {
		pins[i] = s.index.segs.pin(e, i)
	}
	s.index.mu.Unlock()
	all = make([]store.Ended, len(entries))
	unread := 0
	s.load(pins, func(p *pinned, _ *header, d *store.Ended, lerr error) {
		at := p.point()
		switch {
		case errors.Is(lerr, errDamaged): // Fetch finds a waiting delivery that cannot be read
			s.lose(d, at.seq, lerr, leaving(where{kind: kindDead}, at), leaving(where{kind: kindDelivered}, at))
		case lerr != nil:
			s.complain("a delivery, or a dead letter, cannot be read now, and is missing from lists", p.seq, d, lerr)
			unread, err = unread+1, fmt.Errorf("filequeue: %w", lerr)
		default:
			all[p.i], all[p.i].Key = *d, keyAt(at)
		}
	})
	if err != nil && unread == len(entries) { // the whole disk may be failing
		return nil, err
	}
	return slices.DeleteFunc(all, func(d store.Ended) bool { return d.Key == "" }), nil
}

// pages yields the deliveries behind a point. It reads them page by page: the function get returns
// the entries of the first page behind its argument from.
func (s *Store) pages(ctx context.Context, from point, get func(x *index, from point) []entry) iter.Seq2[store.Ended, error] {
	return store.Pages(keyAt(from), func(after string) (all []store.Ended, next string, err error) {
		all, err = read(ctx, s, func(x *index) []entry {
			entries := get(x, pointOf(after))
			if n := len(entries); n > 0 {
				next = keyAt(entries[n-1].point())
			}
			return entries
		})
		return all, next, err
	})
}

// list yields the dead letters or, with kindDelivered as k, the history.
func list(ctx context.Context, s *Store, k kind, filter *store.EndedFilter, after string) iter.Seq2[store.Ended, error] {
	first, last := firstPoint, lastPoint
	if !filter.From.IsZero() {
		first = point{filter.From.UnixMicro() - 1, lastPoint.seq - 1}
	}
	if !filter.To.IsZero() {
		last = point{due: filter.To.UnixMicro()}
	}
	begin, next := first, (*queue).after
	if filter.NewestFirst {
		begin, next = last, (*queue).before
	}
	if p := pointOf(after); p != firstPoint && begin.before(p) != filter.NewestFirst {
		begin = p
	}
	return func(yield func(store.Ended, error) bool) {
		for d, err := range s.pages(ctx, begin, func(x *index, from point) []entry { return next(x.queue(where{kind: k}), from, page) }) {
			if at := pointOf(d.Key); err == nil && (!first.before(at) || !at.before(last)) {
				return
			}
			if (err != nil || filter.Match(&d)) && !yield(d, err) {
				return
			}
		}
	}
}

// Dead implements store.Keeper.
func (s *Store) Dead(ctx context.Context, filter store.EndedFilter, after string) iter.Seq2[store.Ended, error] {
	return list(ctx, s, kindDead, &filter, after)
}

// Delivered implements store.History.
func (s *Store) Delivered(ctx context.Context, filter store.EndedFilter, after string) iter.Seq2[store.Ended, error] {
	return list(ctx, s, kindDelivered, &filter, after)
}

// DeadLetter implements store.Keeper.
func (s *Store) DeadLetter(ctx context.Context, key string) (store.Ended, error) {
	all, err := read(ctx, s, func(x *index) []entry { return x.dead.named(key) })
	switch {
	case err != nil:
		return store.Ended{}, err
	case len(all) == 0:
		return store.Ended{}, store.ErrNoDeadLetter
	}
	return all[0], nil
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

// Waiting implements store.Keeper. The index does not have the IDs of deliveries. So to find where
// to begin, Waiting reads all deliveries up to the one with the ID after.
func (s *Store) Waiting(ctx context.Context, destination, after string) iter.Seq2[store.Delivery, error] {
	get := func(x *index, from point) []entry { return x.waitingAfter(destination, from) }
	return func(yield func(store.Delivery, error) bool) {
		from := firstPoint
		if after != "" {
			for d, err := range s.pages(ctx, firstPoint, get) {
				if err != nil {
					yield(store.Delivery{}, err)
					return
				}
				if d.ID == after {
					from = pointOf(d.Key)
					break
				}
			}
		}
		for d, err := range s.pages(ctx, from, get) {
			if !yield(d.Delivery, err) {
				return
			}
		}
	}
}

// waitingAfter returns the entries of a destination's waiting deliveries behind a point, up to a
// page of them.
func (x *index) waitingAfter(destination string, from point) (all []entry) {
	l := x.lanes[destination]
	if l == nil {
		return nil
	}
	all = append(l.fresh.after(from, page), l.retries.after(from, page)...)
	for _, c := range x.claims {
		if c.lane == l && from.before(c.point()) {
			all = append(all, c.entry)
		}
	}
	slices.SortFunc(all, func(a, b entry) int { return a.point().compare(b.point()) })
	return all[:min(len(all), page)]
}
