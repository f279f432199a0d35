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

// UpdateAudience implements audience.Roster. The bytes of users who join count toward
// Config.MaxBytes as soon as they are in flight.
func (s *Store) UpdateAudience(ctx context.Context, id string, f func(*audience.Record, audience.Members) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return err
	}
	m := s.audiences[id]
	if m == nil {
		m = &members{seen: make(map[string]uint64)}
	}
	rec := m.record
	defer func() { m.set = nil }()
	if err := f(&rec, m); err != nil {
		return err
	}
	more := joining(rec.InFlight) - joining(m.record.InFlight)
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
	m.record = rec
	s.audiences[strings.Clone(id)] = m
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
			all = append(all, audience.Entry{ID: id, Name: m.record.Name, Generation: m.record.Generation})
		}
		return all
	})
}
