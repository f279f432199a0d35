package memqueue

import (
	"context"
	"iter"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/hookferry/analytics/audience"
)

// members holds the members of one audience, and implements audience.Members.
type members struct {
	audience.Record
	seen map[string]uint64 // by user, the latest generation whose list had this member
	// order has the members, sorted, and perhaps users who have left. It is nil after a user
	// joined.
	order []string
	// During an UpdateAudience, set has the users that f has passed to Set, and to their generation.
	set []string
	to  uint64
}

// UpdateAudience implements audience.Roster. The bytes of users who join count toward
// Config.MaxBytes as soon as they are in flight.
func (s *Store) UpdateAudience(ctx context.Context, id string, f func(*audience.Record, audience.Members) error) error {
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer s.mu.Unlock()
	m := s.audiences[id]
	if m == nil {
		m = &members{seen: make(map[string]uint64)}
	}
	rec := m.Record
	defer func() { m.set = nil }()
	if err := f(&rec, m); err != nil {
		return err
	}
	more := joining(rec.InFlight) - joining(m.InFlight)
	for _, user := range m.set {
		_, member := m.seen[user]
		switch {
		case m.to > 0 && !member:
			more += memberSize(user)
		case m.to == 0 && member:
			more -= memberSize(user)
		}
	}
	if err := s.room(more); err != nil {
		return err
	}
	s.bytes += more
	for _, user := range m.set {
		if _, member := m.seen[user]; !member {
			m.order = nil
		}
		if m.seen[user] = m.to; m.to == 0 {
			delete(m.seen, user)
		}
	}
	m.Record = rec
	s.audiences[strings.Clone(id)] = m
	return nil
}

// joining returns how many bytes the users of a chunk will count for when they become members. If
// the chunk has users who leave, the result is 0.
func joining(c audience.Chunk) (bytes int64) {
	if !c.Left {
		for _, user := range c.Users {
			bytes += memberSize(user)
		}
	}
	return bytes
}

func memberSize(user string) int64 { return int64(len(user)) + overhead }

// Get implements audience.Members.
func (m *members) Get(users []string) ([]audience.Member, error) {
	found := make([]audience.Member, len(users))
	for i, user := range users {
		found[i] = audience.Member{User: user, Generation: m.seen[user]}
	}
	return found, nil
}

// Next implements audience.Members.
func (m *members) Next(after string, max int) (next []audience.Member, _ error) {
	if m.order == nil || len(m.order) > 2*len(m.seen)+1024 {
		m.order = slices.Sorted(maps.Keys(m.seen))
	}
	i, found := slices.BinarySearch(m.order, after)
	if found {
		i++
	}
	for ; i < len(m.order) && len(next) < max; i++ {
		if generation, member := m.seen[m.order[i]]; member {
			next = append(next, audience.Member{User: m.order[i], Generation: generation})
		}
	}
	return next, nil
}

// Set implements audience.Members.
func (m *members) Set(users []string, generation uint64) error {
	m.set, m.to = users, generation
	return nil
}

// Members implements audience.Roster.
func (s *Store) Members(ctx context.Context, id string) iter.Seq2[string, error] {
	return page(ctx, s, func() (users []string) {
		if m := s.audiences[id]; m != nil {
			next, _ := m.Next("", math.MaxInt)
			for _, m := range next {
				users = append(users, m.User)
			}
		}
		return users
	})
}

// Audiences implements audience.Roster.
func (s *Store) Audiences(ctx context.Context) iter.Seq2[audience.Entry, error] {
	return page(ctx, s, func() (all []audience.Entry) {
		for _, id := range slices.Sorted(maps.Keys(s.audiences)) {
			m := s.audiences[id]
			all = append(all, audience.Entry{ID: id, Name: m.Name, Generation: m.Generation})
		}
		return all
	})
}
