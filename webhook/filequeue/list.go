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

// A found is a delivery that was read, with its point in the index.
type found struct {
	webhook.DeadLetter
	at point
}

// read reads entries of the index. It leaves out deliveries that were removed in the meantime, and dead
// or delivered ones that cannot be read.
func (s *Store) read(ctx context.Context, get func(x *index) []entry) (all []found, err error) {
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
			complain(s, "the attempts of a delivery cannot be read", p.seq, &f.DeadLetter, err)
			f.Due, f.Died = p.dueAt(), p.dueAt()
		case errors.Is(err, errDamaged):
			n := 0
			s.writer.do(ctx, func(g *group) error {
				g.forget(kindLost, []point{f.at}, &n, &g.dead, &g.history)
				return nil
			}, recordHeader, false)
			if n > 0 {
				complain(s, "a dead letter, or a delivery of the history, cannot be read and is lost", p.seq, &f.DeadLetter, err)
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

// pages reads the entries from a point on. get returns the next page of them.
func (s *Store) pages(ctx context.Context, from point, get func(x *index, from point) []entry) iter.Seq2[found, error] {
	return func(yield func(found, error) bool) {
		last := from
		storekit.Pages("more", func(string) (all []found, next string, err error) {
			all, err = s.read(ctx, func(x *index) []entry {
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

// list yields the dead letters or the history of a period, beginning behind the key after.
func (s *Store) list(ctx context.Context, k kind, from, to time.Time, newestFirst bool, after string) iter.Seq2[found, error] {
	first, last := firstPoint, lastPoint
	if !from.IsZero() {
		first = point{from.UnixMicro() - 1, lastPoint.seq - 1}
	}
	if !to.IsZero() {
		last = point{due: to.UnixMicro()}
	}
	p := pointOf(after)
	begin, next := first, (*queue).after
	if p != firstPoint && begin.before(p) {
		begin = p
	}
	if newestFirst {
		begin, next = last, (*queue).before
		if p != firstPoint && p.before(begin) {
			begin = p
		}
	}
	return func(yield func(found, error) bool) {
		for f, err := range s.pages(ctx, begin, func(x *index, from point) []entry { return next(&x.list(k).queue, from, page, nil) }) {
			if err == nil && (!first.before(f.at) || !f.at.before(last)) || !yield(f, err) {
				return
			}
		}
	}
}

// Dead implements webhook.Keeper.
func (s *Store) Dead(ctx context.Context, filter webhook.DeadFilter, after string) iter.Seq2[webhook.DeadLetter, error] {
	return func(yield func(webhook.DeadLetter, error) bool) {
		for f, err := range s.list(ctx, kindDead, filter.From, filter.To, filter.NewestFirst, after) {
			if (err != nil || filter.Match(&f.DeadLetter)) && !yield(f.DeadLetter, err) {
				return
			}
		}
	}
}

// Delivered implements webhook.History.
func (s *Store) Delivered(ctx context.Context, filter webhook.DeliveredFilter, after string) iter.Seq2[webhook.Delivered, error] {
	return func(yield func(webhook.Delivered, error) bool) {
		for f, err := range s.list(ctx, kindDelivered, filter.From, filter.To, true, after) {
			d := webhook.Delivered{Delivery: f.Delivery, At: f.Died, Key: f.Key}
			if (err != nil || filter.Match(&d)) && !yield(d, err) {
				return
			}
		}
	}
}

// DeadLetter implements webhook.Keeper.
func (s *Store) DeadLetter(ctx context.Context, key string) (webhook.DeadLetter, error) {
	all, err := s.read(ctx, func(x *index) []entry { return x.dead.named(key) })
	switch {
	case err != nil:
		return webhook.DeadLetter{}, err
	case len(all) == 0:
		return webhook.DeadLetter{}, webhook.ErrNoDeadLetter
	}
	return all[0].DeadLetter, nil
}

// named returns the entries with these keys.
func (l *list) named(keys ...string) (all []entry) {
	for _, key := range keys {
		if e := l.at(pointOf(key)); e != nil {
			all = append(all, *e)
		}
	}
	return all
}

// Waiting implements webhook.Keeper. The IDs are on the disk, so it reads the deliveries in front of the
// one whose ID is after, too.
func (s *Store) Waiting(ctx context.Context, destination, after string) iter.Seq2[webhook.Delivery, error] {
	get := func(x *index, from point) []entry { return x.waitingAfter(destination, from) }
	return func(yield func(webhook.Delivery, error) bool) {
		from := firstPoint
		if after != "" {
			for d, err := range s.pages(ctx, firstPoint, get) {
				if err != nil {
					yield(webhook.Delivery{}, err)
					return
				}
				if d.ID == after {
					from = d.at
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

// waitingAfter returns up to a page of the deliveries of a destination behind a point.
func (x *index) waitingAfter(destination string, from point) (all []entry) {
	l := x.lanes[destination]
	if l == nil {
		return nil
	}
	for _, q := range []*queue{&l.fresh, &l.retries, &l.claimed} {
		all = q.after(from, page, all)
	}
	slices.SortFunc(all, func(a, b entry) int { return a.point().compare(b.point()) })
	return all[:min(len(all), page)]
}
