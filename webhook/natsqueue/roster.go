package natsqueue

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/hookferry/analytics/audience"
)

// NewRoster returns a roster in the stream of s, which all nodes share. It ends with s.
func NewRoster(s *Store) audience.Roster { return &roster{conn: s.conn, life: s.life} }

type roster struct {
	conn   *conn
	life   *lifetime
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
func (r *roster) UpdateAudience(ctx context.Context, id string, f func(*audience.Record, audience.Members) error) error {
	_, err := call(ctx, r.life, "changing an audience", func() (_ struct{}, err error) {
		for wait := behind; ; wait = min(2*wait, askEvery) {
			err = r.tryChangeAudience(ctx, id, f)
			if errors.Is(err, errChanged) {
				if err = sleep(ctx, wait); err == nil {
					continue
				}
			}
			return struct{}{}, err
		}
	})
	return err
}

// Members implements audience.Roster. It has the ids of all members in memory.
func (r *roster) Members(ctx context.Context, id string) iter.Seq2[string, error] {
	return page(ctx, r.life, "listing members", func() ([]string, error) { return r.memberIDs(ctx, id) })
}

// Audiences implements audience.Roster.
func (r *roster) Audiences(ctx context.Context) iter.Seq2[audience.Entry, error] {
	return page(ctx, r.life, "listing audiences", func() (all []audience.Entry, _ error) {
		found, err := r.conn.documents(ctx, r.conn.config.audience("*"))
		for id, m := range found {
			var rec audience.Record
			if err == nil {
				err = rec.UnmarshalBinary(m.Data)
			}
			all = append(all, audience.Entry{ID: id, Name: rec.Name, Generation: rec.Generation})
		}
		slices.SortFunc(all, func(a, b audience.Entry) int { return strings.Compare(a.ID, b.ID) })
		return all, err
	})
}

// tryChangeAudience is one try of UpdateAudience.
func (r *roster) tryChangeAudience(ctx context.Context, id string, f func(*audience.Record, audience.Members) error) error {
	subject := r.conn.config.audience(token(id))
	held, err := r.conn.last(ctx, subject)
	var rec audience.Record
	if err == nil && held.Sequence > 0 {
		err = rec.UnmarshalBinary(held.Data)
	}
	if err != nil {
		return err
	}
	if err := f(&rec, &members{roster: r, ctx: ctx, audience: id, generation: rec.Generation, seq: held.Sequence}); err != nil {
		return err
	}
	b, err := rec.AppendBinary(nil)
	if err != nil {
		return err
	}
	return r.conn.store(ctx, document(subject, held.Sequence, b))
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
func (r *roster) memberIDs(ctx context.Context, id string) ([]string, error) {
	all, err := r.conn.documents(ctx, r.conn.config.member(token(id), "*"))
	return slices.Sorted(maps.Keys(all)), err
}
