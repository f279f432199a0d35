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

// deadLetters holds the dead letters, sorted by key: the oldest first.
type deadLetters struct {
	list  []*webhook.DeadLetter
	bytes int64 // the sum of DeadLetter.Size
}

// find returns the index of the dead letter with this key, and whether there is one. If
// there is none, the index is where it would be inserted.
func (dl *deadLetters) find(key string) (int, bool) {
	return slices.BinarySearchFunc(dl.list, key, func(d *webhook.DeadLetter, key string) int { return strings.Compare(d.Key, key) })
}

// bury adds d, with a key made of its Died and the latest seq. The caller holds s.mu.
func (s *Store) bury(d *webhook.DeadLetter) {
	d.Key = fmt.Sprintf("%016x%016x", uint64(d.Died.UnixMicro())^1<<63, s.seq) // sorts by time of death
	i, _ := s.dead.find(d.Key)
	s.dead.list = slices.Insert(s.dead.list, i, d)
	s.dead.bytes += d.Size()
	s.bytes += size(&d.Delivery)
}

// removeDead removes the dead letters that match, and returns their number. The caller holds s.mu.
func (s *Store) removeDead(match func(*webhook.DeadLetter) bool) int {
	before := len(s.dead.list)
	s.dead.list = slices.DeleteFunc(s.dead.list, func(d *webhook.DeadLetter) bool {
		if !match(d) {
			return false
		}
		s.bytes -= size(&d.Delivery)
		s.dead.bytes -= d.Size()
		return true
	})
	return before - len(s.dead.list)
}

// DeadLetter implements webhook.Keeper.
func (s *Store) DeadLetter(ctx context.Context, key string) (webhook.DeadLetter, error) {
	if err := s.lock(ctx); err != nil {
		return webhook.DeadLetter{}, err
	}
	defer s.mu.Unlock()
	i, found := s.dead.find(key)
	if !found {
		return webhook.DeadLetter{}, webhook.ErrNoDeadLetter
	}
	return *s.dead.list[i], nil
}

// Dead implements webhook.Keeper. It yields the dead letters that existed when the loop
// began.
func (s *Store) Dead(ctx context.Context, filter webhook.DeadFilter, after string) iter.Seq2[webhook.DeadLetter, error] {
	return func(yield func(webhook.DeadLetter, error) bool) {
		if err := s.lock(ctx); err != nil {
			yield(webhook.DeadLetter{}, err)
			return
		}
		all := slices.Clone(s.dead.list) // dead letters never change
		s.mu.Unlock()
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
	return s.takeDead(ctx, keys, func(d *webhook.DeadLetter) {
		it := &item{Delivery: d.Delivery}
		it.Due, it.Expires, it.Tries, it.Closed = now(), time.Time{}, 0, nil
		s.add(it)
		it.queue().push(it)
		s.announce(it.lane)
	})
}

// Discard implements webhook.Keeper.
func (s *Store) Discard(ctx context.Context, keys ...string) (int, error) {
	return s.takeDead(ctx, keys, func(*webhook.DeadLetter) {})
}

// takeDead calls the function each for every dead letter that has one of the keys, and then
// removes these dead letters. It returns their number.
func (s *Store) takeDead(ctx context.Context, keys []string, each func(*webhook.DeadLetter)) (int, error) {
	if err := s.lock(ctx); err != nil {
		return 0, err
	}
	defer s.mu.Unlock()
	taken := make(map[string]bool, len(keys))
	for _, key := range keys {
		if i, found := s.dead.find(key); found && !taken[key] {
			taken[key] = true
			each(s.dead.list[i])
		}
	}
	return s.removeDead(func(d *webhook.DeadLetter) bool { return taken[d.Key] }), nil
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
	c := webhook.Counts{Dead: len(s.dead.list), DeadBytes: s.dead.bytes}
	if c.Dead > 0 {
		c.OldestDead = s.dead.list[0].Died
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
	l := s.lanes[filter.Destination]
	if l == nil {
		return 0, 0, nil
	}
	n, claimed = s.change(slices.Values([]*lane{l}), filter.Match, to)
	return n, claimed, nil
}

// change makes a change to those items of lanes that match and are not claimed. n is how many it
// has changed. claimed is how many matching items of the store it has skipped because they are
// claimed.
func (s *Store) change(lanes iter.Seq[*lane], match func(*webhook.Delivery) bool, to webhook.Change) (n, claimed int) {
	for _, it := range s.claims {
		if match(&it.Delivery) {
			claimed++
		}
	}
	now := now()
	for l := range lanes {
		items, before := l.unclaimed(), n
		for _, it := range items {
			switch {
			case !match(&it.Delivery):
			case to == webhook.Discarded:
				s.drop(it)
				n++
			case it.Hasten(now):
				s.announce(l)
				n++
			}
		}
		if n == before {
			continue // the queues are as they were
		}
		l.fresh, l.retries = queue{}, queue{}
		for _, it := range items {
			if it.next, it.child = nil, nil; it.lane != nil {
				it.queue().push(it)
			}
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
	match := func(d *webhook.Delivery) bool { return d.User == user }
	erased, claimed = s.change(maps.Values(s.lanes), match, webhook.Discarded)
	return erased + s.removeDead(func(d *webhook.DeadLetter) bool { return match(&d.Delivery) }), claimed, nil
}
