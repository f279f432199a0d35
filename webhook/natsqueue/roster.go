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

	"github.com/nats-io/nats.go"

	"github.com/hookferry/analytics/audience"
	"github.com/hookferry/analytics/webhook/storekit"
)

const (
	// maxMembers is how many members one request looks up.
	maxMembers = 256
	// goneTTL is how long the server keeps the message of a user who has left.
	goneTTL = "60s"
)

// A member is a user's message in an audience. The message holds the generation, 0 for a user who
// has left.
type member struct {
	user       string
	generation uint64
	seq        uint64 // 0 if there is no message
}

func memberOf(m *stored) (x member, err error) {
	x.seq = m.seq
	if x.generation, err = strconv.ParseUint(string(m.data), 10, 64); err != nil {
		return x, fmt.Errorf("natsqueue: a member: %w", err)
	}
	x.user, err = lastToken(m.subject)
	return x, err
}

// update calls f with an audience, and stores what f changes. It starts over if another node changes
// the audience, or a member that f changes, at the same time.
func (s *Store) update(ctx context.Context, id string, f func(rec *audience.Record, seq uint64) error) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.calls.Leave()
	for wait := behind; ; wait = min(2*wait, askEvery) {
		rec, seq, err := s.record(ctx, id)
		if err == nil {
			err = f(&rec, seq)
		}
		var b []byte
		if err == nil {
			b, err = rec.AppendBinary(nil)
		}
		if err == nil {
			err = s.store(ctx, &parcel{messages: []*nats.Msg{expect(s.config.audience(token(id)), seq, b, true)}})
		}
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

// record returns the record of an audience, and its sequence, 0 if there is none.
func (s *Store) record(ctx context.Context, id string) (rec audience.Record, seq uint64, err error) {
	seq, data, err := s.last(ctx, s.config.audience(token(id)))
	if err == nil && seq > 0 {
		err = rec.UnmarshalBinary(data)
	}
	return rec, seq, err
}

// find returns the messages of users. users is sorted.
func (s *Store) find(ctx context.Context, id string, users []string) ([]member, error) {
	all := make([]member, len(users))
	for i, user := range users {
		all[i].user = user
	}
	for some := range slices.Chunk(users, maxMembers) {
		q := request{Batch: len(some)}
		for _, user := range some {
			q.MultiLast = append(q.MultiLast, s.config.member(token(id), token(user)))
		}
		pages, err := s.read(ctx, q)
		if err != nil {
			return nil, err
		}
		for i := range pages[0] {
			m, err := memberOf(&pages[0][i])
			if err != nil {
				return nil, err
			}
			if j, found := slices.BinarySearch(users, m.user); found {
				all[j] = m
			}
		}
	}
	return all, nil
}

// mark gives members a generation, unless another node has changed one since it was read.
func (s *Store) mark(ctx context.Context, id string, members []member, generation uint64) error {
	var marks []*parcel
	for _, m := range members {
		c := expect(s.config.member(token(id), token(m.user)), m.seq, []byte(decimal(generation)), true)
		if generation == 0 {
			c.Header[headerTTL] = []string{goneTTL}
		}
		marks = append(marks, &parcel{messages: []*nats.Msg{c}})
	}
	return s.store(context.WithoutCancel(ctx), marks...)
}

// members returns the members of an audience that follow the user after, in their order.
func (s *Store) members(ctx context.Context, id, after string) ([]string, error) {
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
	return following(slices.Sorted(maps.Keys(all)), after), nil
}

// following returns the users that come after one. users is sorted.
func following(users []string, after string) []string {
	i, found := slices.BinarySearch(users, after)
	if found {
		i++
	}
	return users[i:]
}

// Begin implements audience.Roster.
func (s *Store) Begin(ctx context.Context, id, name string) (generation uint64, inFlight audience.Chunk, err error) {
	if err := audience.CheckID(id, name); err != nil {
		return 0, inFlight, err
	}
	err = s.update(ctx, id, func(rec *audience.Record, _ uint64) error {
		if rec.Generation == 0 {
			rec.Name = name
		}
		rec.Generation++
		generation, inFlight = rec.Generation, rec.InFlight
		return nil
	})
	return generation, inFlight, err
}

// Join implements audience.Roster.
func (s *Store) Join(ctx context.Context, id string, generation uint64, users []string) (c audience.Chunk, err error) {
	if err := audience.CheckUsers(users); err != nil {
		return c, err
	}
	users = slices.Compact(slices.Sorted(slices.Values(users)))
	err = s.update(ctx, id, func(rec *audience.Record, _ uint64) error {
		if err := rec.Idle(generation); err != nil {
			return err
		}
		all, err := s.find(ctx, id, users)
		if err != nil {
			return err
		}
		var joining []string
		var old []member
		for _, m := range all {
			switch {
			case m.generation == 0:
				joining = append(joining, m.user)
			case m.generation < generation:
				old = append(old, m)
			}
		}
		c = audience.NewChunk(generation, false, joining)
		rec.InFlight = c
		return s.mark(ctx, id, old, generation)
	})
	return c, err
}

// A listing has the members of an audience at the time when a sync began to look for leavers.
type listing struct {
	audience   string
	generation uint64
	users      []string
}

// Leave implements audience.Roster. It lists the members once for a sync, and keeps their ids in memory
// until the sync is done.
func (s *Store) Leave(ctx context.Context, id string, generation uint64, after string, max int) (c audience.Chunk, last string, err error) {
	err = s.update(ctx, id, func(rec *audience.Record, _ uint64) error {
		if err := rec.Idle(generation); err != nil {
			return err
		}
		s.mu.Lock()
		l := s.listed
		s.mu.Unlock()
		if after == "" || l.audience != id || l.generation != generation {
			users, err := s.members(ctx, id, "")
			if err != nil {
				return err
			}
			l = listing{id, generation, users}
		}
		rest := following(l.users, after)
		page := rest[:min(len(rest), max)]
		if last = ""; len(page) > 0 && len(page) < len(rest) {
			last = page[len(page)-1]
		} else {
			l = listing{}
		}
		s.mu.Lock()
		s.listed = l
		s.mu.Unlock()
		all, err := s.find(ctx, id, page)
		if err != nil {
			return err
		}
		var leaving []string
		for _, m := range all {
			if m.generation > 0 && m.generation < generation {
				leaving = append(leaving, m.user)
			}
		}
		c = audience.NewChunk(generation, true, leaving)
		rec.InFlight = c
		return nil
	})
	return c, last, err
}

// Confirm implements audience.Roster. It changes the members before the record, so a Confirm that is
// interrupted can be repeated.
func (s *Store) Confirm(ctx context.Context, id string, generation uint64, n int) error {
	return s.update(ctx, id, func(rec *audience.Record, seq uint64) error {
		if err := rec.Owned(generation); err != nil {
			return err
		}
		c := rec.InFlight
		all, err := s.find(ctx, id, c.Users[:min(n, len(c.Users))])
		if err != nil {
			return err
		}
		// If a later generation changes members after this look at the record, their sequences are
		// others, and mark fails.
		if _, now, err := s.record(ctx, id); err != nil || now != seq {
			return cmp.Or(err, errChanged)
		}
		to := c.Generation
		if c.Left {
			to = 0
		}
		all = slices.DeleteFunc(all, func(m member) bool { return m.generation == to })
		rec.InFlight = c.Rest(n)
		return s.mark(ctx, id, all, to)
	})
}

// Members implements audience.Roster. It has the ids of all members in memory.
func (s *Store) Members(ctx context.Context, id, after string) iter.Seq2[string, error] {
	return storekit.Page(func() ([]string, error) {
		if err := s.enter(ctx); err != nil {
			return nil, err
		}
		defer s.calls.Leave()
		return s.members(ctx, id, after)
	})
}

// Audiences implements audience.Roster.
func (s *Store) Audiences(ctx context.Context) iter.Seq2[audience.Entry, error] {
	return storekit.Page(func() ([]audience.Entry, error) {
		if err := s.enter(ctx); err != nil {
			return nil, err
		}
		defer s.calls.Leave()
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
