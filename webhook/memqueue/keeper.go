package memqueue

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hookferry/analytics/webhook"
)

// DeadLetter implements webhook.Keeper.
func (s *Store) DeadLetter(ctx context.Context, key string) (webhook.Ended, error) {
	if err := s.lock(ctx); err != nil {
		return webhook.Ended{}, err
	}
	defer s.mu.Unlock()
	if d := s.dead[key]; d != nil {
		return *d, nil
	}
	return webhook.Ended{}, webhook.ErrNoDeadLetter
}

// Dead implements webhook.Keeper. It yields the dead letters that existed when the loop
// began.
func (s *Store) Dead(ctx context.Context, filter webhook.EndedFilter, after string) iter.Seq2[webhook.Ended, error] {
	return func(yield func(webhook.Ended, error) bool) {
		if err := s.lock(ctx); err != nil {
			yield(webhook.Ended{}, err)
			return
		}
		all := slices.Collect(maps.Values(s.dead))
		s.mu.Unlock()
		slices.SortFunc(all, func(a, b *webhook.Ended) int { return strings.Compare(a.Key, b.Key) })
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

// Revive implements webhook.Keeper.
func (s *Store) Revive(ctx context.Context, keys ...string) (int, error) {
	return s.takeDead(ctx, keys, func(d *webhook.Ended) {
		it := &item{Delivery: d.Delivery}
		it.Due, it.Expires, it.Tries, it.Closed = now(), time.Time{}, 0, nil
		s.add(it)
		it.queue().push(it)
		s.announce(it.lane)
	})
}

// Discard implements webhook.Keeper.
func (s *Store) Discard(ctx context.Context, keys ...string) (int, error) {
	return s.takeDead(ctx, keys, func(*webhook.Ended) {})
}

// takeDead removes the dead letters with these keys, and calls the function each once for each
// removed dead letter. It returns how many it has removed.
func (s *Store) takeDead(ctx context.Context, keys []string, each func(*webhook.Ended)) (n int, err error) {
	if err := s.lock(ctx); err != nil {
		return 0, err
	}
	defer s.mu.Unlock()
	for _, key := range keys {
		if d := s.dead[key]; d != nil {
			s.removeDead(d)
			each(d)
			n++
		}
	}
	return n, nil
}

func (c *contents) removeDead(d *webhook.Ended) {
	delete(c.dead, d.Key)
	c.bytes -= size(&d.Delivery)
}

// Waiting implements webhook.Keeper. It yields the deliveries that waited when the loop began.
func (s *Store) Waiting(ctx context.Context, destination, after string) iter.Seq2[webhook.Delivery, error] {
	return page(ctx, s, func() (ds []webhook.Delivery) {
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
		items = items[slices.IndexFunc(items, func(it *item) bool { return it.ID == after })+1:]
		ds = make([]webhook.Delivery, len(items))
		for i, it := range items {
			ds[i] = it.Delivery
			ds[i].Claim = 0
		}
		return ds
	})
}

// Count implements webhook.Keeper.
func (s *Store) Count(ctx context.Context) (webhook.Counts, error) {
	if err := s.lock(ctx); err != nil {
		return webhook.Counts{}, err
	}
	defer s.mu.Unlock()
	c := webhook.Counts{Dead: len(s.dead)}
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

// CountByDestination implements webhook.Keeper.
func (s *Store) CountByDestination(ctx context.Context) iter.Seq2[webhook.DestinationCounts, error] {
	return page(ctx, s, func() (all []webhook.DestinationCounts) {
		for name, l := range s.lanes {
			all = append(all, webhook.DestinationCounts{Destination: name, Waiting: l.waiting, Claimed: l.claimed, Oldest: l.head().Earliest()})
		}
		return all
	})
}

// Settings implements webhook.Keeper.
func (s *Store) Settings(ctx context.Context, prefix string) iter.Seq2[webhook.Setting, error] {
	return page(ctx, s, func() (found []webhook.Setting) {
		for name, e := range s.settings {
			if strings.HasPrefix(name, prefix) {
				found = append(found, e)
			}
		}
		slices.SortFunc(found, func(a, b webhook.Setting) int { return strings.Compare(a.Name, b.Name) })
		return found
	})
}

// Set implements webhook.Keeper.
func (s *Store) Set(ctx context.Context, e webhook.Setting) (uint64, error) {
	if err := e.Check(); err != nil {
		return 0, fmt.Errorf("memqueue: %w", err)
	}
	if err := s.lock(ctx); err != nil {
		return 0, err
	}
	defer s.mu.Unlock()
	if s.settings[e.Name].Version != e.Version {
		return 0, webhook.ErrConflict
	}
	s.seq++
	if e.Value == nil {
		delete(s.settings, e.Name)
	} else {
		e = webhook.Setting{Name: strings.Clone(e.Name), Value: bytes.Clone(e.Value), Version: s.seq}
		s.settings[e.Name] = e
	}
	return s.seq, nil
}

// Change implements webhook.Keeper.
func (s *Store) Change(ctx context.Context, filter webhook.WaitingFilter, to webhook.Change) (n, claimed int, err error) {
	if err := to.Check(&filter); err != nil {
		return 0, 0, err
	}
	if err := s.lock(ctx); err != nil {
		return 0, 0, err
	}
	defer s.mu.Unlock()
	if l := s.lanes[filter.Destination]; l != nil {
		n, claimed = s.change(slices.Values([]*lane{l}), filter.Match, to)
	}
	return n, claimed, nil
}

// change makes the change given by the argument to. It changes the items of the given lanes for
// which match returns true, except claimed ones. n is how many items it has changed. claimed is how
// many matching items of the whole store are claimed, and so were skipped.
func (c *contents) change(lanes iter.Seq[*lane], match func(*webhook.Delivery) bool, to webhook.Change) (n, claimed int) {
	for _, it := range c.claims {
		if match(&it.Delivery) {
			claimed++
		}
	}
	now := now()
	for l := range lanes {
		items := l.unclaimed()
		if !slices.ContainsFunc(items, func(it *item) bool { return match(&it.Delivery) }) {
			continue // the queues stay as they are
		}
		l.fresh, l.retries = queue{}, queue{}
		for _, it := range items {
			it.left, it.right = nil, nil
			switch {
			case !match(&it.Delivery):
			case to == webhook.Discarded:
				c.drop(it)
				n++
				continue
			case it.Hasten(now):
				c.announce(l)
				n++
			}
			it.queue().push(it)
		}
	}
	return n, claimed
}

// Erase implements webhook.Keeper.
func (s *Store) Erase(ctx context.Context, user string) (erased, claimed int, err error) {
	if user == "" {
		return 0, 0, errors.New("memqueue: erasure without a user")
	}
	if err := s.lock(ctx); err != nil {
		return 0, 0, err
	}
	defer s.mu.Unlock()
	erased, claimed = s.change(maps.Values(s.lanes), func(d *webhook.Delivery) bool { return d.User == user }, webhook.Discarded)
	for _, d := range s.dead {
		if d.User == user {
			s.removeDead(d)
			erased++
		}
	}
	return erased, claimed, nil
}
