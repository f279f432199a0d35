package filequeue

import (
	"context"
	"iter"
	"slices"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/storekit"
)

// Waiting implements webhook.Keeper. The IDs are on the disk: what comes before the one whose
// ID is after is read, too.
func (s *Store) Waiting(ctx context.Context, destination, after string) iter.Seq2[webhook.Delivery, error] {
	return func(yield func(webhook.Delivery, error) bool) {
		from := firstPoint
		if after != "" {
			p, err := s.findID(ctx, destination, after)
			if err != nil {
				yield(webhook.Delivery{}, err)
				return
			}
			from = p
		}
		storekit.Pages("more", func(string) (some []webhook.Delivery, next string, err error) {
			ds, _, last, err := s.waitingAfter(ctx, destination, from)
			for i := range ds {
				some = append(some, ds[i].Delivery)
			}
			if last != from && err == nil {
				from, next = last, "more"
			}
			return some, next, err
		})(yield)
	}
}

// findID returns the point of a delivery that waits, firstPoint if there is none.
func (s *Store) findID(ctx context.Context, destination, id string) (point, error) {
	for from := firstPoint; ; {
		ds, points, last, err := s.waitingAfter(ctx, destination, from)
		if i := slices.IndexFunc(ds, func(d webhook.DeadLetter) bool { return d.ID == id }); i >= 0 {
			return points[i], nil
		}
		if err != nil || last == from {
			return firstPoint, err
		}
		from = last
	}
}

// waitingAfter returns the next deliveries behind a point. last is the point of the last, from if
// there are none.
func (s *Store) waitingAfter(ctx context.Context, destination string, from point) (ds []webhook.DeadLetter, points []point, last point, err error) {
	last = from
	ds, points, _, err = s.list(ctx, func(x *index) []entry {
		l := x.lanes[destination]
		if l == nil {
			return nil
		}
		all := l.retries.after(from, page, l.fresh.after(from, page, nil))
		for _, c := range x.claims.byID {
			if c.lane == l && from.before(c.point()) {
				all = append(all, c.entry)
			}
		}
		slices.SortFunc(all, func(a, b entry) int {
			if a.point().before(b.point()) {
				return -1
			}
			return 1
		})
		if all = all[:min(len(all), page)]; len(all) > 0 {
			last = all[len(all)-1].point()
		}
		return all
	})
	return ds, points, last, err
}
