package filequeue

import (
	"context"
	"iter"
	"time"

	"github.com/hookferry/analytics/webhook"
)

// Delivered implements webhook.History.
func (s *Store) Delivered(ctx context.Context, filter webhook.DeliveredFilter, after string) iter.Seq2[webhook.Delivered, error] {
	from := newest(after, filter.To)
	return func(yield func(webhook.Delivered, error) bool) {
		for d, err := range s.pages(ctx, from, func(x *index, from point) []entry { return x.history.before(from, page, nil) }) {
			if err == nil && !filter.From.IsZero() && d.at.due < filter.From.UnixMicro() {
				return
			}
			e := webhook.Delivered{Delivery: d.Delivery, At: d.Died, Key: d.Key}
			if (err != nil || filter.Match(&e)) && !yield(e, err) {
				return
			}
		}
	}
}

// newest returns the point in front of which a list begins that has the latest first.
func newest(after string, to time.Time) point {
	from := lastPoint
	if p := pointOf(after); p != firstPoint {
		from = p
	}
	if !to.IsZero() && to.UnixMicro() < from.due {
		from = point{due: to.UnixMicro()}
	}
	return from
}

// expired returns the oldest in the history that it may not keep any more, at most page of them,
// and when the next one expires, zero if that depends on no time.
func (x *index) expired(c *Config, now time.Time) (points []point, next time.Time) {
	bytes := x.history.bytes
	for _, e := range x.history.after(firstPoint, page, nil) {
		old := c.HistoryAge != Unlimited && !e.dueAt().Add(c.HistoryAge).After(now)
		if !old && (c.HistoryBytes == Unlimited || bytes <= c.HistoryBytes) {
			if c.HistoryAge != Unlimited {
				next = e.dueAt().Add(c.HistoryAge)
			}
			return points, next
		}
		points = append(points, e.point())
		bytes -= e.bytes()
	}
	if len(points) == page {
		next = now
	}
	return points, next
}
