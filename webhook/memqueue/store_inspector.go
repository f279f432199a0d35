package memqueue

import (
	"context"
	"errors"
	"iter"
	"slices"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// List implements store.Inspector. It goes through the deliveries of all destinations.
func (s *Store) List(ctx context.Context, q store.Query, after uint64, max int) ([]store.Record, uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return nil, 0, err
	}
	l := store.Listing{Query: &q, After: after, Max: max}
	for it := range s.log.behind(after, q.Oldest) {
		if q.HasDestination(it.record.Destination) {
			if r := it.listed(); !l.Add(&r) {
				return l.Page, l.Next, nil
			}
		}
	}
	return l.Page, 0, nil
}

// Get implements store.Inspector.
func (s *Store) Get(ctx context.Context, ref store.Ref) (store.Record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return store.Record{}, err
	}
	if it := s.log.at(ref); it != nil {
		return it.listed(), nil
	}
	return store.Record{}, store.ErrNoDelivery
}

// Hasten implements store.Inspector.
func (s *Store) Hasten(ctx context.Context, refs ...store.Ref) (n, claimed int, err error) {
	return s.each(ctx, refs, func(it *item) bool {
		again := *it
		if it.record.State != store.StateWaiting || !again.record.Hasten(now()) {
			return false
		}
		again.left, again.right = nil, nil
		s.log.items[s.log.find(it.record.Seq)] = &again
		it.replace(&again)
		it.leave()
		it.queue().forget()
		again.queue().push(&again)
		s.announce(again.lane)
		return true
	})
}

// Revive implements store.Inspector.
func (s *Store) Revive(ctx context.Context, refs ...store.Ref) (n int, err error) {
	n, _, err = s.each(ctx, refs, func(it *item) bool {
		if it.record.State != store.StateDead {
			return false
		}
		again := &item{record: store.Record{Delivery: it.record.Delivery, State: store.StateWaiting}, key: it.key}
		s.remove(it)
		d := &again.record.Delivery
		d.Accepted, d.Due, d.Expires, d.Tries, d.Closed = now(), now(), time.Time{}, 0, nil
		if s.add(again); again.follow() {
			again.queue().push(again)
			s.announce(again.lane)
		}
		return true
	})
	return n, err
}

// Discard implements store.Inspector.
func (s *Store) Discard(ctx context.Context, refs ...store.Ref) (n, claimed int, err error) {
	return s.each(ctx, refs, func(it *item) bool {
		s.remove(it)
		return true
	})
}

// each calls do for each item with one of refs, unless it is claimed. It returns how many times do
// returned true, and how many items are claimed.
func (s *Store) each(ctx context.Context, refs []store.Ref, do func(*item) bool) (n, claimed int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return 0, 0, err
	}
	seen := make(map[store.Ref]bool, len(refs))
	for _, ref := range refs {
		it := s.log.at(ref)
		if it == nil || seen[ref] {
			continue
		}
		if seen[ref] = true; it.record.Claim != 0 {
			claimed++
		} else if do(it) {
			n++
		}
	}
	return n, claimed, nil
}

// Erase implements store.Inspector.
func (s *Store) Erase(ctx context.Context, user string) (erased, claimed int, err error) {
	if user == "" {
		return 0, 0, errors.New("memqueue: erasure without a user")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return 0, 0, err
	}
	for _, it := range slices.Clone(s.log.items) {
		switch {
		case it == nil || it.record.User != user:
		case it.record.Claim != 0:
			claimed++
		default:
			s.remove(it)
			erased++
		}
	}
	return erased, claimed, nil
}

// Count implements store.Inspector.
func (s *Store) Count(ctx context.Context) (store.Counts, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return store.Counts{}, err
	}
	var c store.Counts
	for _, it := range s.log.items {
		switch r := &it.record; r.State {
		case store.StateDelivered:
			c.Delivered, c.DeliveredBytes = c.Delivered+1, c.DeliveredBytes+r.Size()
		case store.StateDead:
			c.Dead, c.DeadBytes = c.Dead+1, c.DeadBytes+r.Size()
			if c.OldestDead.IsZero() || r.At.Before(c.OldestDead) {
				c.OldestDead = r.At
			}
		}
	}
	for _, l := range s.lanes {
		c.Waiting, c.Claimed, c.Behind = c.Waiting+l.waiting, c.Claimed+l.claimed, c.Behind+l.behind
		if at := l.head().Earliest(); c.Oldest.IsZero() || !at.IsZero() && at.Before(c.Oldest) {
			c.Oldest = at
		}
	}
	return c, nil
}

// CountByDestination implements store.Inspector.
func (s *Store) CountByDestination(ctx context.Context, only ...string) iter.Seq2[store.DestinationCounts, error] {
	return page(ctx, s, func() (all []store.DestinationCounts) {
		for name, l := range store.Among(s.lanes, only) {
			all = append(all, store.DestinationCounts{Destination: name, Waiting: l.waiting, Claimed: l.claimed, Behind: l.behind, Bytes: l.bytes, Oldest: l.head().Earliest()})
		}
		return all
	})
}

// Keeps implements store.History.
func (s *Store) Keeps() bool { return s.historyBytes > 0 }

// Unkept implements store.History. It counts what is larger than Config.HistoryBytes.
func (s *Store) Unkept() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unkept
}
