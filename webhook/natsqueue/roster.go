package natsqueue

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/hookferry/analytics/audience"
)

// A roster implements audience.Roster.
type roster struct {
	conn   *conn
	listed atomic.Pointer[listing] // nil unless a sync looks for leavers
}

// A listing has the members of an audience at the time when a sync began to look for members who
// have left. A sync lists the members once, and keeps their ids in memory until it is done.
type listing struct {
	audience   string
	generation uint64
	users      []string
}

// tryChangeAudience is one try of UpdateAudience.
func (s *roster) tryChangeAudience(ctx context.Context, id string, f func(*audience.Record, audience.Members) error) error {
	subject := s.conn.config.audience(token(id))
	held, err := s.conn.last(ctx, subject)
	var rec audience.Record
	if err == nil && held.Sequence > 0 {
		err = rec.UnmarshalBinary(held.Data)
	}
	if err != nil {
		return err
	}
	if err := f(&rec, &members{roster: s, ctx: ctx, audience: id, generation: rec.Generation, seq: held.Sequence}); err != nil {
		return err
	}
	b, err := rec.AppendBinary(nil)
	if err != nil {
		return err
	}
	return s.conn.store(ctx, document(subject, held.Sequence, b))
}

// members implements audience.Members for one call of tryChangeAudience.
type members struct {
	roster     *roster
	ctx        context.Context
	audience   string
	generation uint64
	seq        uint64 // of the record
}

// A mark is the message of a user. The generation is 0 if the user has left.
type mark struct{ generation, seq uint64 }

// subject returns the subject of a user's mark.
func (m *members) subject(user string) string {
	return m.roster.conn.config.member(token(m.audience), token(user))
}

// find returns the marks of users, by subject.
func (m *members) find(users []string) (map[string]mark, error) {
	all := make(map[string]mark)
	for some := range slices.Chunk(users, pageLen) {
		subjects := []string{m.roster.conn.config.audience(token(m.audience))} // exists, so the server can tell how recent its answer is
		for _, user := range some {
			subjects = append(subjects, m.subject(user))
		}
		found, err := m.roster.conn.lasts(m.ctx, m.seq, subjects...)
		if err != nil {
			return nil, err
		}
		for _, x := range found {
			generation, _ := strconv.ParseUint(string(x.Data), 10, 64)
			all[x.Subject] = mark{generation, x.Sequence}
		}
	}
	return all, nil
}

// Get implements audience.Members.
func (m *members) Get(users []string) ([]audience.Member, error) {
	found, err := m.find(users)
	all := make([]audience.Member, len(users))
	for i, user := range users {
		all[i] = audience.Member{User: user, Generation: found[m.subject(user)].generation}
	}
	return all, err
}

// Next implements audience.Members.
func (m *members) Next(after string, max int) ([]audience.Member, error) {
	l := m.roster.listed.Load()
	if after == "" || l == nil || l.audience != m.audience || l.generation != m.generation {
		users, err := m.roster.memberIDs(m.ctx, m.audience)
		if err != nil {
			return nil, err
		}
		l = &listing{m.audience, m.generation, users}
	}
	i, found := slices.BinarySearch(l.users, after)
	if found {
		i++
	}
	page := l.users[i:]
	if m.roster.listed.Store(l); len(page) < max {
		m.roster.listed.Store(nil)
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
	if held, err := m.roster.conn.last(m.ctx, m.roster.conn.config.audience(token(m.audience))); err != nil || held.Sequence != m.seq {
		return cmp.Or(err, errChanged)
	}
	var marks []*parcel
	for _, user := range users {
		mark := found[m.subject(user)]
		if mark.generation == generation {
			continue
		}
		var data []byte
		if generation > 0 {
			data = []byte(decimal(generation))
		}
		marks = append(marks, document(m.subject(user), mark.seq, data))
	}
	return m.roster.conn.store(context.WithoutCancel(m.ctx), marks...)
}

// memberIDs returns the sorted ids of the members of an audience.
func (s *roster) memberIDs(ctx context.Context, id string) ([]string, error) {
	all, err := s.conn.documents(ctx, s.conn.config.member(token(id), "*"))
	return slices.Sorted(maps.Keys(all)), err
}
