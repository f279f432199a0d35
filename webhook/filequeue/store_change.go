package filequeue

import (
	"context"
	"slices"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// Revive implements store.Inspector. It stores the deliveries again, so on a full disk it returns
// store.ErrQueueFull.
func (s *Store) Revive(ctx context.Context, keys ...string) (n int, err error) {
	if err := s.gate.Enter(ctx); err != nil {
		return 0, err
	}
	defer s.gate.Leave()
	if err := s.janitor.hold(ctx); err != nil { // an Erase knows deliveries by their sequence numbers
		return 0, err
	}
	defer s.janitor.resume()
	keys = slices.Compact(slices.Sorted(slices.Values(keys)))
	for chunk := range slices.Chunk(keys, page) {
		all, err := read(ctx, s, func(x *index) []entry { return x.dead.named(chunk...) })
		if err != nil {
			return n, err
		}
		ts := make([]transition, len(all))
		for i := range all {
			d := &all[i]
			d.Due, d.Expires, d.Tries, d.Closed, d.Reason, d.At = s.Now(), time.Time{}, 0, nil, "", time.Time{}
			if ts[i], err = restate(queueID{kindDead, d.Destination}, d, kindFresh, true); err != nil {
				return n, err
			}
		}
		moved, err := s.transit(ctx, ts)
		if n += moved; err != nil {
			return n, err
		}
	}
	return n, nil
}

// Discard implements store.Inspector.
func (s *Store) Discard(ctx context.Context, keys ...string) (n int, err error) {
	if err := s.gate.Enter(ctx); err != nil {
		return 0, err
	}
	defer s.gate.Leave()
	ts := make([]transition, len(keys))
	for i, key := range keys {
		ts[i] = leaving(queueID{kind: kindDead}, rankOf(key))
	}
	return s.transit(ctx, ts)
}

// Change implements store.Inspector. It reads the deliveries of the destination, a page at a time.
func (s *Store) Change(ctx context.Context, filter store.WaitingFilter, to store.Change) (n, held int, err error) {
	if err := to.Check(&filter); err != nil {
		return 0, 0, err
	}
	if err := s.gate.Enter(ctx); err != nil {
		return 0, 0, err
	}
	defer s.gate.Leave()
	now := s.Now()
	for from, more := firstRank, true; more; {
		var claimed map[uint64]*claim
		retries := make(map[rank]bool) // from the index, as the state of a delivery may be unreadable
		all, err := read(ctx, s, func(x *index) []entry {
			claimed = x.claimed()
			entries := x.waitingAfter(filter.Destination, from)
			if more = len(entries) > 0; more {
				from = entries[len(entries)-1].rank()
			}
			for _, e := range entries {
				at := e.rank()
				retries[at] = x.queue(queueID{kindRetry, filter.Destination}).at(at) != nil
			}
			return entries
		})
		if err != nil {
			return n, held, err
		}
		var ts []transition
		for i := range all {
			d := &all[i]
			at := rankOf(d.Key)
			w := queueID{waitingKind(retries[at]), d.Destination}
			switch {
			case !filter.Match(&d.Delivery):
			case claimed[at.seq] != nil:
				held++
			case to == store.Discarded:
				ts = append(ts, leaving(w, at))
			case d.Hasten(now):
				t, err := restate(w, d, w.kind, false)
				if err != nil {
					return n, held, err
				}
				ts = append(ts, t)
			}
		}
		moved, err := s.transit(ctx, ts)
		if err != nil {
			return n, held, err
		}
		n, held = n+moved, held+len(ts)-moved // the others have been claimed since read
	}
	return n, held, nil
}
