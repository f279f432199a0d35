package filequeue

import (
	"context"
	"iter"
	"slices"

	"github.com/hookferry/analytics/webhook"
)

// Waiting implements webhook.Keeper. The IDs are on the disk: what comes before the one whose
// ID is after is read, too.
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

// waitingAfter returns up to a page of what waits for a destination behind a point.
func (x *index) waitingAfter(destination string, from point) []entry {
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
	slices.SortFunc(all, func(a, b entry) int { return a.point().compare(b.point()) })
	return all[:min(len(all), page)]
}
