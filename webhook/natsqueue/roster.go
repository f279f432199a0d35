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

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/storekit"
)

// audience is the subject of an audience, and member that of a member. Both have a generation;
// 0 is that of who is no member any more.
func (c *Config) audience(name string) string { return c.Stream + ".audience." + token(name) }
func (c *Config) member(audience, user string) string {
	return c.Stream + ".member." + token(audience) + "." + token(user)
}

const (
	// membersMost is how many members are looked for, or change, at a time.
	membersMost = 256
	// goneTTL is how long the server keeps the message of who is no member any more.
	goneTTL = "60s"
)

// A member is what the stream has of a user in an audience.
type member struct {
	user       string
	generation uint64
	seq        uint64 // 0 if there is no message
}

// Begin implements webhook.Roster.
func (s *Store) Begin(ctx context.Context, audience string) (uint64, error) {
	if err := s.enter(ctx); err != nil {
		return 0, err
	}
	defer s.calls.Leave()
	for {
		last, data, err := s.last(ctx, s.config.audience(audience))
		generation := uint64(0)
		if err == nil && last > 0 {
			generation, err = strconv.ParseUint(string(data), 10, 64)
		}
		generation++
		if err == nil {
			err = s.store(ctx, &parcel{messages: []*nats.Msg{expect(s.config.audience(audience), last, []byte(decimal(generation)), true)}})
		}
		switch {
		case errors.Is(err, errChanged):
		case err != nil:
			return 0, fmt.Errorf("natsqueue: beginning a sync: %w", err)
		default:
			return generation, nil
		}
	}
}

// find returns what the stream has of users, in their order.
func (s *Store) find(ctx context.Context, audience string, users []string) ([]member, error) {
	if len(users) == 0 {
		return nil, nil
	}
	ask := request{Batch: len(users)}
	for _, user := range users {
		ask.MultiLast = append(ask.MultiLast, s.config.member(audience, user))
	}
	pages, err := s.read(ctx, ask)
	if err != nil {
		return nil, err
	}
	all := make([]member, len(users))
	for i, user := range users {
		all[i].user = user
	}
	for i := range pages[0] {
		m, err := memberOf(&pages[0][i])
		if err != nil {
			return nil, err
		}
		if j := slices.Index(users, m.user); j >= 0 {
			all[j] = m
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

// change returns the message that gives m a generation, if nobody has changed it since.
func (s *Store) change(audience string, m member, generation uint64) *nats.Msg {
	c := expect(s.config.member(audience, m.user), m.seq, []byte(decimal(generation)), true)
	if generation == 0 {
		c.Header[headerTTL] = []string{goneTTL}
	}
	return c
}

// changeAll stores changes of members with the deliveries that announce them.
func (s *Store) changeAll(ctx context.Context, changes []*nats.Msg, ds []webhook.Delivery) error {
	if len(changes) == 0 {
		return nil
	}
	p, err := s.newPut(len(ds), func(i int) *webhook.Put { return &webhook.Put{Delivery: ds[i]} })
	if err != nil {
		return err
	}
	p.extra = changes
	return s.put(ctx, p)
}

// An announcer calls announce once for a user.
type announcer struct {
	announce func(string) ([]webhook.Delivery, error)
	told     map[string][]webhook.Delivery
}

func (a *announcer) of(user string) (ds []webhook.Delivery, err error) {
	ds, ok := a.told[user]
	if !ok {
		if ds, err = a.announce(user); err == nil {
			a.told[user] = ds
		}
	}
	return ds, err
}

// Join implements webhook.Roster. Members and what announces them are one atomic batch for
// each 256 users.
func (s *Store) Join(ctx context.Context, audience string, generation uint64, users []string, announce func(string) ([]webhook.Delivery, error)) (joined int, err error) {
	if err := s.enter(ctx); err != nil {
		return 0, err
	}
	defer s.calls.Leave()
	for _, user := range users {
		if len(user) < 1 || len(user) > maxName {
			return 0, fmt.Errorf("natsqueue: member of %d bytes, not 1 to %d", len(user), maxName)
		}
	}
	a := &announcer{announce, make(map[string][]webhook.Delivery)}
	for some := range slices.Chunk(slices.Compact(slices.Sorted(slices.Values(users))), membersMost) {
		for wait := behind; ; wait = min(2*wait, askEvery) {
			n, err := s.join(ctx, audience, max(generation, 1), some, a)
			joined += n
			if errors.Is(err, errChanged) { // others are at it
				err = sleep(ctx, wait)
				if err == nil {
					continue
				}
			}
			if err != nil {
				return 0, fmt.Errorf("natsqueue: joining: %w", err)
			}
			break
		}
	}
	return joined, nil
}

// join is Join for a few users. With errChanged it is to be called again.
func (s *Store) join(ctx context.Context, audience string, generation uint64, users []string, a *announcer) (int, error) {
	all, err := s.find(ctx, audience, users)
	if err != nil {
		return 0, err
	}
	var changes []*nats.Msg
	var marks []*parcel
	var ds []webhook.Delivery
	for _, m := range all {
		switch {
		case m.generation == 0:
			told, err := a.of(m.user)
			if err != nil {
				return 0, err
			}
			changes, ds = append(changes, s.change(audience, m, generation)), append(ds, told...)
		case m.generation < generation:
			marks = append(marks, &parcel{messages: []*nats.Msg{s.change(audience, m, generation)}})
		}
	}
	if err := s.changeAll(ctx, changes, ds); err != nil {
		return 0, err
	}
	return len(changes), s.store(context.WithoutCancel(ctx), marks...)
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

// A listing is the users of an audience in their order, as they were when a Leave began.
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

// Leave implements webhook.Roster. It reads the audience when it begins at the first
// member, and goes by that until it is through.
func (s *Store) Leave(ctx context.Context, audience string, generation uint64, after string, max int, announce func(string) ([]webhook.Delivery, error)) (last string, left int, err error) {
	if err := s.enter(ctx); err != nil {
		return "", 0, err
	}
	defer s.calls.Leave()
	rest, err := s.after(ctx, audience, after)
	if err != nil {
		return "", 0, fmt.Errorf("natsqueue: leaving: %w", err)
	}
	page := rest[:min(len(rest), max, membersMost)]
	if n := len(page); n > 0 && n < len(rest) {
		last = page[n-1]
	}
	a := &announcer{announce, make(map[string][]webhook.Delivery)}
	for {
		left, err = s.leave(ctx, audience, generation, page, a)
		if !errors.Is(err, errChanged) {
			break
		}
		if err = sleep(ctx, behind); err != nil {
			break
		}
	}
	if err != nil {
		return "", 0, fmt.Errorf("natsqueue: leaving: %w", err)
	}
	if last == "" {
		s.mu.Lock()
		s.listed = listing{}
		s.mu.Unlock()
	}
	return last, left, nil
}

func (s *Store) leave(ctx context.Context, audience string, generation uint64, users []string, a *announcer) (int, error) {
	all, err := s.find(ctx, audience, users)
	if err != nil {
		return 0, err
	}
	var changes []*nats.Msg
	var ds []webhook.Delivery
	for _, m := range all {
		if m.generation == 0 || m.generation >= generation {
			continue
		}
		told, err := a.of(m.user)
		if err != nil {
			return 0, err
		}
		changes, ds = append(changes, s.change(audience, m, 0)), append(ds, told...)
	}
	return len(changes), s.changeAll(ctx, changes, ds)
}

// Members implements webhook.Roster. It has the names of all members in memory.
func (s *Store) Members(ctx context.Context, audience, after string) iter.Seq2[string, error] {
	return storekit.Page(func() ([]string, error) {
		if err := s.enter(ctx); err != nil {
			return nil, err
		}
		defer s.calls.Leave()
		all, err := s.members(ctx, audience)
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

// Audiences implements webhook.Rosters.
func (s *Store) Audiences(ctx context.Context) iter.Seq2[webhook.RosterAudience, error] {
	return storekit.Page(func() (all []webhook.RosterAudience, _ error) {
		if err := s.enter(ctx); err != nil {
			return nil, err
		}
		defer s.calls.Leave()
		for m, err := range s.list(ctx, s.config.Stream+".audience.*") {
			if err != nil {
				return nil, fmt.Errorf("natsqueue: audiences: %w", err)
			}
			name, err1 := lastToken(m.subject)
			generation, err2 := strconv.ParseUint(string(m.data), 10, 64)
			if err1 != nil || err2 != nil {
				return nil, fmt.Errorf("natsqueue: audiences: %w", cmp.Or(err1, err2))
			}
			all = append(all, webhook.RosterAudience{Name: name, Generation: generation})
		}
		// One that is begun while it is read is found twice: the later is the last.
		slices.SortStableFunc(all, func(a, b webhook.RosterAudience) int { return cmp.Compare(a.Name, b.Name) })
		n := 0
		for i := range all {
			if i+1 == len(all) || all[i+1].Name != all[i].Name {
				all[n] = all[i]
				n++
			}
		}
		return all[:n], nil
	})
}
