package memqueue

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
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

// Waiting implements webhook.Keeper.
func (s *Store) Waiting(ctx context.Context, destination, after string) iter.Seq2[webhook.Delivery, error] {
	return func(yield func(webhook.Delivery, error) bool) {
		if err := s.lock(ctx); err != nil {
			yield(webhook.Delivery{}, err)
			return
		}
		// The sort below runs without the lock, while a retry may change an item's Due and seq. So
		// it uses copies of both, taken under the lock.
		type position struct {
			*item
			due time.Time
			seq uint64
		}
		var rest []position
		if l := s.lanes[destination]; l != nil {
			for it := range l.all {
				rest = append(rest, position{it, it.Due, it.seq})
			}
		}
		s.mu.Unlock() // a long list takes a while to sort
		slices.SortFunc(rest, func(a, b position) int { return cmp.Or(a.due.Compare(b.due), cmp.Compare(a.seq, b.seq)) })
		rest = rest[slices.IndexFunc(rest, func(p position) bool { return p.ID == after })+1:] // IDs never change: no lock needed
		for _, p := range rest {
			if err := s.lock(ctx); err != nil {
				yield(webhook.Delivery{}, err)
				return
			}
			d, waits := p.Delivery, p.lane != nil
			s.mu.Unlock()
			d.Claim = 0
			if waits && !yield(d, nil) {
				return
			}
		}
	}
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
	now := now()
	n, claimed = l.change(filter.Match, func(it *item) bool {
		if to == webhook.Discarded {
			s.drop(it)
			return true
		}
		hastened := it.Hasten(now)
		if hastened {
			s.announce(l)
		}
		return hastened
	})
	return n, claimed, nil
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
	for _, l := range s.lanes {
		n, skipped := l.change(match, func(it *item) bool {
			s.drop(it)
			return true
		})
		erased, claimed = erased+n, claimed+skipped
	}
	return erased + s.removeDead(func(d *webhook.DeadLetter) bool { return match(&d.Delivery) }), claimed, nil
}
