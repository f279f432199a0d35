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
	"github.com/hookferry/analytics/webhook/storekit"
)

// pageSize is how many deliveries or dead letters are listed under one lock.
const pageSize = 256

// deadLetters holds the dead letters, sorted by key: the oldest first.
type deadLetters struct {
	list  []*webhook.DeadLetter
	bytes int64 // the sum of DeadLetter.Size
}

// add adds d and sets its key. seq must be unique.
func (dl *deadLetters) add(d *webhook.DeadLetter, seq uint64) {
	d.Key = fmt.Sprintf("%016x%016x", uint64(d.Died.UnixMicro())^1<<63, seq) // sorts by time of death
	i, _ := dl.find(d.Key)
	dl.list = slices.Insert(dl.list, i, d)
	dl.bytes += d.Size()
}

// find returns the index of the dead letter with this key, and whether it exists.
// If it does not, the index is where it would be inserted.
func (dl *deadLetters) find(key string) (int, bool) {
	return slices.BinarySearchFunc(dl.list, key, func(d *webhook.DeadLetter, key string) int { return strings.Compare(d.Key, key) })
}

// removeDead removes the dead letters that match, and returns their number. The caller holds s.mu.
func removeDead(s *Store, match func(*webhook.DeadLetter) bool) int {
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

// Dead implements webhook.Keeper.
func (s *Store) Dead(ctx context.Context, filter webhook.DeadFilter, after string) iter.Seq2[webhook.DeadLetter, error] {
	return storekit.Pages(after, func(after string) (ds []webhook.DeadLetter, last string, err error) {
		if err := s.lock(ctx); err != nil {
			return nil, "", err
		}
		defer s.mu.Unlock()
		i, found := s.dead.find(after)
		if found && !filter.NewestFirst {
			i++
		}
		rest := s.dead.list[i:]
		if filter.NewestFirst {
			rest = s.dead.list
			if after != "" {
				rest = rest[:i]
			}
			rest = slices.Clone(rest[max(0, len(rest)-pageSize-1):])
			slices.Reverse(rest)
		}
		if len(rest) > pageSize {
			rest = rest[:pageSize]
			last = rest[pageSize-1].Key
		}
		for _, d := range rest {
			if filter.Match(d) {
				ds = append(ds, *d)
			}
		}
		return ds, last, nil
	})
}

// Revive implements webhook.Keeper.
func (s *Store) Revive(ctx context.Context, keys ...string) (int, error) {
	return s.takeDead(ctx, keys, func(d *webhook.DeadLetter) {
		it := &item{Delivery: d.Delivery}
		it.Due, it.Expires, it.Tries, it.Closed = now(), time.Time{}, 0, nil
		it.at = it.Due.UnixMicro()
		s.add(it)
		it.queue().push(it)
		s.announce(it.lane)
	})
}

// Discard implements webhook.Keeper.
func (s *Store) Discard(ctx context.Context, keys ...string) (int, error) {
	return s.takeDead(ctx, keys, func(*webhook.DeadLetter) {})
}

// takeDead calls each with every dead letter that has one of the keys, then removes them.
// It returns their number.
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
	return removeDead(s, func(d *webhook.DeadLetter) bool { return taken[d.Key] }), nil
}

// Waiting implements webhook.Keeper.
func (s *Store) Waiting(ctx context.Context, destination, after string) iter.Seq2[webhook.Delivery, error] {
	return func(yield func(webhook.Delivery, error) bool) {
		if err := s.lock(ctx); err != nil {
			yield(webhook.Delivery{}, err)
			return
		}
		// A retry changes an item's at and seq, so the sort uses copies taken under the lock.
		type position struct {
			*item
			at  int64
			seq uint64
		}
		var rest []position
		if l := s.lanes[destination]; l != nil {
			for it := range l.all() {
				rest = append(rest, position{it, it.at, it.seq})
			}
		}
		s.mu.Unlock() // a long list takes a while to sort
		slices.SortFunc(rest, func(a, b position) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.seq, b.seq)) })
		rest = rest[slices.IndexFunc(rest, func(p position) bool { return p.ID == after })+1:] // IDs never change: no lock needed
		storekit.Pages("", func(string) (found []webhook.Delivery, more string, err error) {
			if err := s.lock(ctx); err != nil {
				return nil, "", err
			}
			defer s.mu.Unlock()
			n := min(pageSize, len(rest))
			for _, p := range rest[:n] {
				if p.lane != nil { // still stored
					found = append(found, p.Delivery)
					found[len(found)-1].Claim = 0
				}
			}
			if rest = rest[n:]; len(rest) > 0 {
				more = "more"
			}
			return found, more, nil
		})(yield)
	}
}

// Count implements webhook.Keeper.
func (s *Store) Count(ctx context.Context) (webhook.Counts, error) {
	if err := s.lock(ctx); err != nil {
		return webhook.Counts{}, err
	}
	defer s.mu.Unlock()
	c := webhook.Counts{Waiting: s.waiting, Claimed: s.claims.len(), Dead: len(s.dead.list), DeadBytes: s.dead.bytes}
	if c.Dead > 0 {
		c.OldestDead = s.dead.list[0].Died
	}
	for _, l := range s.lanes {
		if at := l.oldest(); c.Oldest.IsZero() || !at.IsZero() && at.Before(c.Oldest) {
			c.Oldest = at
		}
	}
	return c, nil
}

// CountByDestination implements webhook.Keeper.
func (s *Store) CountByDestination(ctx context.Context) iter.Seq2[webhook.DestinationCounts, error] {
	return page(ctx, s, func() (all []webhook.DestinationCounts) {
		for name, l := range s.lanes {
			all = append(all, webhook.DestinationCounts{Destination: name, Waiting: l.waiting, Claimed: l.claimed, Oldest: l.oldest()})
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
	if n := len(e.Name); n < 1 || n > 512 || len(e.Value) > webhook.MaxSetting {
		return 0, fmt.Errorf("memqueue: setting with a name of %d bytes and a value of %d", n, len(e.Value))
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
		if !it.Hasten(now) {
			return false
		}
		it.at = now.UnixMicro()
		s.announce(l)
		return true
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
	for _, l := range s.lanes {
		n, skipped := l.change(func(d *webhook.Delivery) bool { return d.User == user }, func(it *item) bool {
			s.drop(it)
			return true
		})
		erased, claimed = erased+n, claimed+skipped
	}
	return erased + removeDead(s, func(d *webhook.DeadLetter) bool { return d.User == user }), claimed, nil
}
