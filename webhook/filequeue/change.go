package filequeue

import (
	"context"
	"slices"
	"time"

	"github.com/hookferry/analytics/webhook"
)

// Revive implements webhook.Keeper.
func (s *Store) Revive(ctx context.Context, keys ...string) (n int, err error) {
	if err := s.gate.Enter(ctx); err != nil {
		return 0, err
	}
	defer s.gate.Leave()
	keys = slices.Compact(slices.Sorted(slices.Values(keys)))
	for chunk := range slices.Chunk(keys, page) {
		all, err := read(ctx, s, func(x *index) []entry { return x.dead.named(chunk...) })
		if err != nil {
			return n, err
		}
		ts := make([]transition, len(all))
		for i := range all {
			d := &all[i]
			d.Due, d.Expires, d.Tries, d.Closed, d.Reason, d.Died = s.Now(), time.Time{}, 0, nil, "", time.Time{}
			if ts[i], err = restate(where{kindDead, d.Destination}, d, kindFresh); err != nil {
				return n, err
			}
		}
		moved, err := s.transit(ctx, ts)
		if n += moved; err != nil {
			return n, err
		}
		s.changed.give()
	}
	return n, nil
}

// Discard implements webhook.Keeper.
func (s *Store) Discard(ctx context.Context, keys ...string) (n int, err error) {
	if err := s.gate.Enter(ctx); err != nil {
		return 0, err
	}
	defer s.gate.Leave()
	ts := make([]transition, len(keys))
	for i, key := range keys {
		ts[i] = leaving(where{kind: kindDead}, pointOf(key))
	}
	return s.transit(ctx, ts)
}

// Change implements webhook.Keeper. It reads the deliveries of the destination, a page at a time.
func (s *Store) Change(ctx context.Context, filter webhook.WaitingFilter, to webhook.Change) (n, held int, err error) {
	if err := to.Check(&filter); err != nil {
		return 0, 0, err
	}
	if err := s.gate.Enter(ctx); err != nil {
		return 0, 0, err
	}
	defer s.gate.Leave()
	now := s.Now()
	for from, more := firstPoint, true; more; {
		all, err := read(ctx, s, func(x *index) []entry {
			entries := x.waitingAfter(filter.Destination, from)
			if more = len(entries) > 0; more {
				from = entries[len(entries)-1].point()
			}
			return entries
		})
		if err != nil {
			return n, held, err
		}
		var ts []transition
		for i := range all {
			d := &all[i]
			if !filter.Match(&d.Delivery) {
				continue
			}
			w := where{waitingKind(!d.Expires.IsZero()), d.Destination}
			t := leaving(w, pointOf(d.Key))
			if to == webhook.DueNow && !d.Hasten(now) {
				t.kind = w.kind // already due: the delivery stays as it is
			} else if to == webhook.DueNow {
				if t, err = restate(w, d, w.kind); err != nil {
					return n, held, err
				}
			}
			ts = append(ts, t)
		}
		if _, err := s.transit(ctx, ts); err != nil {
			return n, held, err
		}
		for i := range ts {
			if t := &ts[i]; t.held {
				held++
			} else if t.moved && (t.kind == kindGone || t.payload != nil) {
				n++
			}
		}
	}
	if to == webhook.DueNow {
		s.changed.give()
	}
	return n, held, nil
}
