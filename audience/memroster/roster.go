// Package memroster provides an audience.Roster that keeps audiences in memory. It is for tests and
// for development. When the process ends, everything in it is lost.
//
//	announcer := audience.New(forwarder, memroster.New(64<<20))
package memroster

import (
	"context"
	"errors"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/hookferry/analytics/audience"
	"github.com/hookferry/analytics/webhook/store"
)

// ErrFull is returned by UpdateAudience if the members would take more memory than New allows.
var ErrFull = errors.New("memroster: no room for more members")

// A Roster is an audience.Roster.
type Roster struct {
	maxBytes int64

	mu        sync.Mutex         // guards the fields below
	bytes     int64              // the bytes that count toward maxBytes
	audiences map[string]members // by audience id; nil after Close
}

// New returns an empty Roster, whose members take at most maxBytes. A member counts as the bytes of
// its id and 512 more, from the moment it is in flight.
func New(maxBytes int64) *Roster {
	return &Roster{maxBytes: maxBytes, audiences: make(map[string]members)}
}

// locked calls f with r.mu locked, unless ctx has ended or the roster is closed.
func (r *Roster) locked(ctx context.Context, f func() error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if r.audiences == nil {
		return store.ErrClosed
	}
	return f()
}

// Close drops all audiences. Its error is nil.
func (r *Roster) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.audiences = nil
	return nil
}

// UpdateAudience implements audience.Roster. It holds a lock of the Roster while it calls f.
func (r *Roster) UpdateAudience(ctx context.Context, id string, f func(*audience.Record, audience.Members) error) error {
	return r.locked(ctx, func() error {
		before := r.audiences[id]
		m := before
		if err := f(&m.record, &m); err != nil {
			return err
		}
		bytes := r.bytes - before.size() + m.size()
		if bytes > r.maxBytes {
			return ErrFull
		}
		r.bytes = bytes
		r.audiences[strings.Clone(id)] = m
		return nil
	})
}

// Members implements audience.Roster.
func (r *Roster) Members(ctx context.Context, id string) iter.Seq2[string, error] {
	return store.Page(func() (users []string, err error) {
		err = r.locked(ctx, func() error {
			for _, m := range r.audiences[id].list {
				users = append(users, m.User)
			}
			return nil
		})
		return users, err
	})
}

// Audiences implements audience.Roster.
func (r *Roster) Audiences(ctx context.Context) iter.Seq2[audience.Entry, error] {
	return store.Page(func() (all []audience.Entry, err error) {
		err = r.locked(ctx, func() error {
			for _, id := range slices.Sorted(maps.Keys(r.audiences)) {
				rec := r.audiences[id].record
				all = append(all, audience.Entry{ID: id, Name: rec.Name, Generation: rec.Generation})
			}
			return nil
		})
		return all, err
	})
}

// members holds one audience, and implements audience.Members.
type members struct {
	record audience.Record
	list   []audience.Member // sorted; Set replaces it
	bytes  int64             // the memory of list, as memberSize estimates it
}

// memberSize estimates the memory, in bytes, that a member takes.
func memberSize(user string) int64 { return int64(len(user)) + 512 }

// size returns the bytes that count for the members, and for the users in flight who will join.
func (m *members) size() int64 {
	size := m.bytes
	if !m.record.InFlight.Left {
		for _, user := range m.record.InFlight.Users {
			size += memberSize(user)
		}
	}
	return size
}

// find returns the index of the user in m.list, or the index of the first member with a greater id.
func (m *members) find(user string) (i int, found bool) {
	return slices.BinarySearchFunc(m.list, user, func(m audience.Member, user string) int { return strings.Compare(m.User, user) })
}

// Get implements audience.Members.
func (m *members) Get(users []string) ([]audience.Member, error) {
	found := make([]audience.Member, len(users))
	for i, user := range users {
		found[i].User = user
		if at, is := m.find(user); is {
			found[i] = m.list[at]
		}
	}
	return found, nil
}

// Next implements audience.Members.
func (m *members) Next(after string, max int) ([]audience.Member, error) {
	i, _ := m.find(after + "\x00") // no string is between the two
	return slices.Clone(m.list[i:][:min(max, len(m.list)-i)]), nil
}

// Set implements audience.Members.
func (m *members) Set(users []string, generation uint64) error {
	merged, rest := make([]audience.Member, 0, len(m.list)+len(users)), m.list
	for _, user := range users {
		for len(rest) > 0 && rest[0].User < user {
			merged, rest = append(merged, rest[0]), rest[1:]
		}
		if len(rest) > 0 && rest[0].User == user {
			rest = rest[1:]
			m.bytes -= memberSize(user)
		}
		if generation > 0 {
			merged = append(merged, audience.Member{User: user, Generation: generation})
			m.bytes += memberSize(user)
		}
	}
	m.list = append(merged, rest...)
	return nil
}
