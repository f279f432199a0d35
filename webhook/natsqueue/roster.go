package natsqueue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/hookferry/analytics/audience"
)

const (
	// maxMembers is how many members one request looks up.
	maxMembers = 256
	// goneTTL is how long the server keeps the message of a user who has left.
	goneTTL = "60s"
)

// A roster implements audience.Roster.
type roster struct {
	*conn
	listed atomic.Pointer[listing] // nil unless a sync looks for leavers
}

// A listing has the members of an audience at the time when a sync began to look for members who
// have left. A sync lists the members once, and keeps their ids in memory until it is done.
type listing struct {
	audience   string
	generation uint64
	users      []string
}

// UpdateAudience implements audience.Roster. f stores changed members one by one, by members.Set.
// After f, UpdateAudience stores the record of the audience. So after a crash in between, the record
// is the old one, and the same call can be repeated. If another node changes the audience or one of
// these members meanwhile, UpdateAudience starts over with the new record and calls f again.
func (s *roster) UpdateAudience(ctx context.Context, id string, f func(*audience.Record, audience.Members) error) error {
	if err := s.calls.Enter(ctx); err != nil {
		return err
	}
	defer s.calls.Leave()
	for wait := behind; ; wait = min(2*wait, askEvery) {
		err := s.tryChange(ctx, id, f)
		if errors.Is(err, errChanged) {
			if err = sleep(ctx, wait); err == nil {
				continue
			}
		}
		if err != nil {
			return fmt.Errorf("natsqueue: audience: %w", err)
		}
		return nil
	}
}

func (s *roster) tryChange(ctx context.Context, id string, f func(*audience.Record, audience.Members) error) error {
	subject := s.config.audience(token(id))
	seq, data, err := s.last(ctx, subject)
	var rec audience.Record
	if err == nil && seq > 0 {
		err = rec.UnmarshalBinary(data)
	}
	if err != nil {
		return err
	}
	if err := f(&rec, &members{roster: s, ctx: ctx, audience: id, generation: rec.Generation, seq: seq}); err != nil {
		return err
	}
	b, err := rec.AppendBinary(nil)
	if err != nil {
		return err
	}
	return s.store(ctx, one(subject, b, headerExpected, decimal(seq), headerRollup, "sub"))
}

// members implements audience.Members for one call of tryChange. If another node was first, the
// method UpdateAudience calls tryChange again.
type members struct {
	*roster
	ctx        context.Context
	audience   string
	generation uint64
	seq        uint64 // of the record
}

// A member is a user's message in an audience.
type member struct {
	user       string
	generation uint64 // 0 for a user who has left
	seq        uint64
}

func memberOf(m *stored) (x member, err error) {
	x.seq = m.seq
	if x.generation, err = strconv.ParseUint(string(m.data), 10, 64); err != nil {
		return x, fmt.Errorf("natsqueue: a member: %w", err)
	}
	x.user, err = lastToken(m.subject)
	return x, err
}

// find returns the messages of users, by user.
func (m *members) find(users []string) (map[string]member, error) {
	all := make(map[string]member)
	for some := range slices.Chunk(users, maxMembers) {
		q := request{Batch: len(some)}
		for _, user := range some {
			q.MultiLast = append(q.MultiLast, m.config.member(token(m.audience), token(user)))
		}
		pages, err := m.read(m.ctx, q)
		if err != nil {
			return nil, err
		}
		for i := range pages[0] {
			x, err := memberOf(&pages[0][i])
			if err != nil {
				return nil, err
			}
			all[x.user] = x
		}
	}
	return all, nil
}

// Get implements audience.Members.
func (m *members) Get(users []string) ([]audience.Member, error) {
	found, err := m.find(users)
	all := make([]audience.Member, len(users))
	for i, user := range users {
		all[i] = audience.Member{User: user, Generation: found[user].generation}
	}
	return all, err
}

// Next implements audience.Members.
func (m *members) Next(after string, max int) ([]audience.Member, error) {
	l := m.listed.Load()
	if after == "" || l == nil || l.audience != m.audience || l.generation != m.generation {
		users, err := m.memberIDs(m.ctx, m.audience)
		if err != nil {
			return nil, err
		}
		l = &listing{m.audience, m.generation, users}
	}
	page := following(l.users, after)
	if m.listed.Store(l); len(page) < max {
		m.listed.Store(nil)
	}
	return m.Get(page[:min(len(page), max)])
}

// Set implements audience.Members. It changes no member that another node has changed since the
// record was read.
func (m *members) Set(users []string, generation uint64) error {
	found, err := m.find(users)
	if err != nil {
		return err
	}
	// Check that the record is still the same. If another node changes these members after this check,
	// their sequences change, and the server refuses the messages below.
	if seq, _, err := m.last(m.ctx, m.config.audience(token(m.audience))); err != nil || seq != m.seq {
		return cmp.Or(err, errChanged)
	}
	var marks []*parcel
	for _, user := range users {
		x := found[user]
		if x.generation == generation {
			continue
		}
		headers := []string{headerExpected, decimal(x.seq), headerRollup, "sub"}
		if generation == 0 {
			headers = append(headers, headerTTL, goneTTL)
		}
		marks = append(marks, one(m.config.member(token(m.audience), token(user)), []byte(decimal(generation)), headers...))
	}
	return m.store(context.WithoutCancel(m.ctx), marks...)
}

// memberIDs returns the sorted ids of the members of an audience.
func (s *roster) memberIDs(ctx context.Context, id string) ([]string, error) {
	all := make(map[string]bool)
	for m, err := range s.list(ctx, s.config.member(token(id), "*")) {
		if err != nil {
			return nil, err
		}
		x, err := memberOf(&m)
		if err != nil {
			return nil, err
		}
		if all[x.user] = true; x.generation == 0 {
			delete(all, x.user)
		}
	}
	return slices.Sorted(maps.Keys(all)), nil
}

// following returns the users with ids greater than the argument after. users must be sorted.
func following(users []string, after string) []string {
	i, found := slices.BinarySearch(users, after)
	if found {
		i++
	}
	return users[i:]
}

// Members implements audience.Roster. It has the ids of all members in memory.
func (s *roster) Members(ctx context.Context, id, after string) iter.Seq2[string, error] {
	return page(ctx, s.conn, func() ([]string, error) {
		users, err := s.memberIDs(ctx, id)
		return following(users, after), err
	})
}

// Audiences implements audience.Roster.
func (s *roster) Audiences(ctx context.Context) iter.Seq2[audience.Entry, error] {
	return page(ctx, s.conn, func() ([]audience.Entry, error) {
		all := make(map[string]audience.Entry) // the list has an audience twice if the audience changes during the listing
		for m, err := range s.list(ctx, s.config.audience("*")) {
			var rec audience.Record
			var id string
			if err == nil {
				err = rec.UnmarshalBinary(m.data)
			}
			if err == nil {
				id, err = lastToken(m.subject)
			}
			if err != nil {
				return nil, fmt.Errorf("natsqueue: audiences: %w", err)
			}
			all[id] = audience.Entry{ID: id, Name: rec.Name, Generation: rec.Generation}
		}
		return slices.SortedFunc(maps.Values(all), func(a, b audience.Entry) int { return strings.Compare(a.ID, b.ID) }), nil
	})
}
