package memqueue

import (
	"context"
	"errors"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// DeadLetter implements store.Inspector.
func (s *Store) DeadLetter(ctx context.Context, key string) (store.Ended, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return store.Ended{}, err
	}
	if d := s.dead[key]; d != nil {
		return *d, nil
	}
	return store.Ended{}, store.ErrNoDeadLetter
}

// Dead implements store.Inspector. It yields the dead letters that existed when the loop
// began.
func (s *Store) Dead(ctx context.Context, filter store.EndedFilter, after string) iter.Seq2[store.Ended, error] {
	return func(yield func(store.Ended, error) bool) {
		all, err := s.allDead(ctx)
		if err != nil {
			yield(store.Ended{}, err)
			return
		}
		slices.SortFunc(all, func(a, b *store.Ended) int { return strings.Compare(a.Key, b.Key) })
		if filter.NewestFirst {
			slices.Reverse(all)
		}
		for _, d := range all {
			follows := after == "" || d.Key != after && d.Key > after != filter.NewestFirst
			if follows && filter.Match(d) && !yield(*d, nil) {
				return
			}
		}
	}
}

// allDead returns the dead letters in no order.
func (s *Store) allDead(ctx context.Context) ([]*store.Ended, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	return slices.Collect(maps.Values(s.dead)), nil
}

// Revive implements store.Inspector.
func (s *Store) Revive(ctx context.Context, keys ...string) (int, error) {
	return s.takeDead(ctx, keys, func(d *store.Ended) {
		it := &item{delivery: d.Delivery}
		it.delivery.Due, it.delivery.Expires, it.delivery.Tries, it.delivery.Closed = now(), time.Time{}, 0, nil
		s.add(it)
		it.queue().push(it)
		s.announce(it.lane)
	})
}

// Discard implements store.Inspector.
func (s *Store) Discard(ctx context.Context, keys ...string) (int, error) {
	return s.takeDead(ctx, keys, func(*store.Ended) {})
}

// takeDead removes the dead letters with these keys, and calls the function each once for each
// removed dead letter. It returns how many it has removed.
func (s *Store) takeDead(ctx context.Context, keys []string, each func(*store.Ended)) (n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return 0, err
	}
	for _, key := range keys {
		if d := s.dead[key]; d != nil {
			s.removeDead(d)
			each(d)
			n++
		}
	}
	return n, nil
}

func (s *Store) removeDead(d *store.Ended) {
	delete(s.dead, d.Key)
	s.bytes -= size(&d.Delivery)
}

// Waiting implements store.Inspector. It yields the deliveries that waited when the loop began.
func (s *Store) Waiting(ctx context.Context, destination, after string) iter.Seq2[store.Delivery, error] {
	return page(ctx, s, func() (ds []store.Delivery) {
		l := s.lanes[destination]
		if l == nil {
			return nil
		}
		items := l.unclaimed()
		for _, it := range s.claims {
			if it.lane == l {
				items = append(items, it)
			}
		}
		slices.SortFunc(items, (*item).compare)
		items = items[slices.IndexFunc(items, func(it *item) bool { return it.delivery.ID == after })+1:]
		ds = make([]store.Delivery, len(items))
		for i, it := range items {
			ds[i] = it.delivery
			ds[i].Claim = 0
		}
		return ds
	})
}

// Count implements store.Inspector.
func (s *Store) Count(ctx context.Context) (store.Counts, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return store.Counts{}, err
	}
	c := store.Counts{Dead: len(s.dead)}
	for _, d := range s.dead {
		c.DeadBytes += d.Size()
		if c.OldestDead.IsZero() || d.At.Before(c.OldestDead) {
			c.OldestDead = d.At
		}
	}
	for _, l := range s.lanes {
		c.Waiting, c.Claimed = c.Waiting+l.waiting, c.Claimed+l.claimed
		if at := l.head().Earliest(); c.Oldest.IsZero() || !at.IsZero() && at.Before(c.Oldest) {
			c.Oldest = at
		}
	}
	return c, nil
}

// CountByDestination implements store.Inspector.
func (s *Store) CountByDestination(ctx context.Context) iter.Seq2[store.DestinationCounts, error] {
	return page(ctx, s, func() (all []store.DestinationCounts) {
		for name, l := range s.lanes {
			all = append(all, store.DestinationCounts{Destination: name, Waiting: l.waiting, Claimed: l.claimed, Oldest: l.head().Earliest()})
		}
		return all
	})
}

// Change implements store.Inspector.
func (s *Store) Change(ctx context.Context, filter store.WaitingFilter, to store.Change) (n, claimed int, err error) {
	if err := to.Check(&filter); err != nil {
		return 0, 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return 0, 0, err
	}
	if l := s.lanes[filter.Destination]; l != nil {
		n, claimed = s.change(slices.Values([]*lane{l}), filter.Match, to)
	}
	return n, claimed, nil
}

// change makes the change given by the argument to. It changes the items of the given lanes for
// which match returns true, except claimed ones. n is how many items it has changed. claimed is how
// many matching items of the whole store are claimed, and so were skipped.
func (s *Store) change(lanes iter.Seq[*lane], match func(*store.Delivery) bool, to store.Change) (n, claimed int) {
	for _, it := range s.claims {
		if match(&it.delivery) {
			claimed++
		}
	}
	now := now()
	for l := range lanes {
		items := l.unclaimed()
		if !slices.ContainsFunc(items, func(it *item) bool { return match(&it.delivery) }) {
			continue // the queues stay as they are
		}
		l.fresh, l.retries = queue{}, queue{}
		for _, it := range items {
			it.left, it.right = nil, nil
			switch {
			case !match(&it.delivery):
			case to == store.Discarded:
				s.drop(it)
				n++
				continue
			case it.delivery.Hasten(now):
				s.announce(l)
				n++
			}
			it.queue().push(it)
		}
	}
	return n, claimed
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
	erased, claimed = s.change(maps.Values(s.lanes), func(d *store.Delivery) bool { return d.User == user }, store.Discarded)
	for _, d := range s.dead {
		if d.User == user {
			s.removeDead(d)
			erased++
		}
	}
	return erased, claimed, nil
}
