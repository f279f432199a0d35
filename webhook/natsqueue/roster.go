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

	"github.com/nats-io/nats.go"

	"github.com/hookferry/analytics/audience"
	"github.com/hookferry/analytics/webhook/storekit"
)

// audience is the subject of an audience.Record, and member that of a member, which has a
// generation; 0 is that of a user who is no member any more.
func (c *Config) audience(id string) string { return c.Stream + ".audience." + token(id) }
func (c *Config) member(id, user string) string {
	return c.Stream + ".member." + token(id) + "." + token(user)
}

const (
	// membersMost is how many members are looked for at a time.
	membersMost = 256
	// goneTTL is how long the server keeps the message of a user who is no member any more.
	goneTTL = "60s"
)

// A member is what the stream has of a user in an audience.
type member struct {
	user       string
	generation uint64
	seq        uint64 // 0 if there is no message
}

// change calls f with an audience, and stores what f changes. It begins again if another node
// has changed the audience, or a member that f has changed, meanwhile.
func (s *Store) change(ctx context.Context, id string, f func(rec *audience.Record, seq uint64) error) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.calls.Leave()
	for wait := behind; ; wait = min(2*wait, askEvery) {
		rec, seq, err := s.record(ctx, id)
		if err == nil {
			before := rec
			if err = f(&rec, seq); err == nil && !same(&before, &rec) {
				var b []byte
				if b, err = rec.AppendBinary(nil); err == nil {
					err = s.store(ctx, &parcel{messages: []*nats.Msg{expect(s.config.audience(id), seq, b, true)}})
				}
			}
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

// same reports whether a call has left a record as it was.
func same(a, b *audience.Record) bool {
	return a.Generation == b.Generation && len(a.InFlight.Users) == len(b.InFlight.Users)
}

// record returns the record of an audience, and its sequence, 0 if there is none.
func (s *Store) record(ctx context.Context, id string) (rec audience.Record, seq uint64, err error) {
	seq, data, err := s.last(ctx, s.config.audience(id))
	if err == nil && seq > 0 {
		err = rec.UnmarshalBinary(data)
	}
	return rec, seq, err
}

// find returns what the stream has of users, which are sorted.
func (s *Store) find(ctx context.Context, id string, users []string) ([]member, error) {
	all := make([]member, len(users))
	for i, user := range users {
		all[i].user = user
	}
	for some := range slices.Chunk(users, membersMost) {
		ask := request{Batch: len(some)}
		for _, user := range some {
			ask.MultiLast = append(ask.MultiLast, s.config.member(id, user))
		}
		pages, err := s.read(ctx, ask)
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

func memberOf(m *stored) (x member, err error) {
	x.seq = m.seq
	if x.generation, err = strconv.ParseUint(string(m.data), 10, 64); err != nil {
		return x, fmt.Errorf("natsqueue: a member: %w", err)
	}
	x.user, err = lastToken(m.subject)
	return x, err
}

// moved returns the message that gives m a generation, if nobody has changed it since.
func (s *Store) moved(id string, m member, generation uint64) *parcel {
	c := expect(s.config.member(id, m.user), m.seq, []byte(decimal(generation)), true)
	if generation == 0 {
		c.Header[headerTTL] = []string{goneTTL}
	}
	return &parcel{messages: []*nats.Msg{c}}
}

// Begin implements audience.Roster.
func (s *Store) Begin(ctx context.Context, id, name string) (generation uint64, inFlight audience.Chunk, err error) {
	if err := audience.CheckID(id, name); err != nil {
		return 0, inFlight, err
	}
	err = s.change(ctx, id, func(rec *audience.Record, _ uint64) error {
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
	err = s.change(ctx, id, func(rec *audience.Record, _ uint64) error {
		if err := rec.Idle(generation); err != nil {
			return err
		}
		all, err := s.find(ctx, id, users)
		if err != nil {
			return err
		}
		var joining []string
		var marks []*parcel
		for _, m := range all {
			switch {
			case m.generation == 0:
				joining = append(joining, m.user)
			case m.generation < generation:
				marks = append(marks, s.moved(id, m, generation))
			}
		}
		rec.InFlight = audience.NewChunk(generation, false, joining)
		c = rec.InFlight
		return s.store(context.WithoutCancel(ctx), marks...)
	})
	return c, err
}

// members yields the members of an audience, in no order.
func (s *Store) members(ctx context.Context, audience string) (map[string]member, error) {
	all := make(map[string]member)
	for m, err := range s.list(ctx, s.config.Stream+".member."+token(audience)+".*") {
		if err != nil {
			return nil, err
		}
		x, err := memberOf(&m)
		if err != nil {
			return nil, err
		}
		if all[x.user] = x; x.generation == 0 {
			delete(all, x.user)
		}
	}
	return all, nil
}

// A listing is the users of an audience in their order, as they were when Leave began with the first.
type listing struct {
	audience string
	users    []string
}

// after returns the users of an audience after one.
func (s *Store) after(ctx context.Context, audience, after string) ([]string, error) {
	s.mu.Lock()
	l := s.listed
	s.mu.Unlock()
	if after == "" || l.audience != audience || l.users == nil {
		all, err := s.members(ctx, audience)
		if err != nil {
			return nil, err
		}
		l = listing{audience, slices.Sorted(maps.Keys(all))}
		s.mu.Lock()
		s.listed = l
		s.mu.Unlock()
	}
	i, found := slices.BinarySearch(l.users, after)
	if found {
		i++
	}
	return l.users[i:], nil
}

// Leave implements audience.Roster. It reads the audience when it begins at the first member,
// and goes by that until it is through.
func (s *Store) Leave(ctx context.Context, id string, generation uint64, after string, max int) (c audience.Chunk, last string, err error) {
	err = s.change(ctx, id, func(rec *audience.Record, _ uint64) error {
		if err := rec.Idle(generation); err != nil {
			return err
		}
		rest, err := s.after(ctx, id, after)
		if err != nil {
			return err
		}
		page := rest[:min(len(rest), max)]
		if last = ""; len(page) > 0 && len(page) < len(rest) {
			last = page[len(page)-1]
		}
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
		rec.InFlight = audience.NewChunk(generation, true, leaving)
		c = rec.InFlight
		return nil
	})
	if err == nil && last == "" {
		s.mu.Lock()
		s.listed = listing{}
		s.mu.Unlock()
	}
	return c, last, err
}

// Confirm implements audience.Roster. It changes one member after the other, and the record at
// the end: a Confirm that is interrupted can be made again.
func (s *Store) Confirm(ctx context.Context, id string, generation uint64, n int) error {
	return s.change(ctx, id, func(rec *audience.Record, seq uint64) error {
		if err := rec.Owned(generation); err != nil {
			return err
		}
		c := rec.InFlight
		all, err := s.find(ctx, id, c.Users[:min(n, len(c.Users))])
		if err != nil {
			return err
		}
		// Members that a later generation changes after this are changed in vain here, as
		// their sequences are others then.
		if _, now, err := s.record(ctx, id); err != nil || now != seq {
			return cmp.Or(err, errChanged)
		}
		to := c.Generation
		if c.Left {
			to = 0
		}
		var changes []*parcel
		for _, m := range all {
			if m.generation != to {
				changes = append(changes, s.moved(id, m, to))
			}
		}
		rec.InFlight = c.Rest(n)
		return s.store(context.WithoutCancel(ctx), changes...)
	})
}

// Members implements audience.Roster. It has the names of all members in memory.
func (s *Store) Members(ctx context.Context, id, after string) iter.Seq2[string, error] {
	return storekit.Page(func() ([]string, error) {
		if err := s.enter(ctx); err != nil {
			return nil, err
		}
		defer s.calls.Leave()
		all, err := s.members(ctx, id)
		if err != nil {
			return nil, fmt.Errorf("natsqueue: members: %w", err)
		}
		users := slices.Sorted(maps.Keys(all))
		i, found := slices.BinarySearch(users, after)
		if found {
			i++
		}
		return users[i:], nil
	})
}

// Audiences implements audience.Roster.
func (s *Store) Audiences(ctx context.Context) iter.Seq2[audience.Entry, error] {
	return storekit.Page(func() ([]audience.Entry, error) {
		if err := s.enter(ctx); err != nil {
			return nil, err
		}
		defer s.calls.Leave()
		all := make(map[string]audience.Entry) // one that changes while it is read is found twice
		for m, err := range s.list(ctx, s.config.Stream+".audience.*") {
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
		return slices.SortedFunc(maps.Values(all), func(a, b audience.Entry) int { return cmp.Compare(a.ID, b.ID) }), nil
	})
}
