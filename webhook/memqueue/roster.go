package memqueue

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/storekit"
)

// An audience is the members and when each was last seen.
type audience struct {
	generation uint64
	seen       map[string]uint64 // the generation in which each member was seen last
	order      []string          // sorted; holds all members, and some that have left
	unsorted   bool              // order lacks members
}

// sorted returns the members in order, and some that have left. It is not
// written to later.
func (a *audience) sorted() []string {
	if a.unsorted || len(a.order) > 2*len(a.seen)+1024 {
		a.order = slices.Sorted(maps.Keys(a.seen))
		a.unsorted = false
	}
	return a.order
}

// after returns the rest of order after the member.
func after(order []string, member string) []string {
	i, found := slices.BinarySearch(order, member)
	if found {
		i++
	}
	return order[i:]
}

func (s *Store) audience(name string) *audience {
	a := s.roster[name]
	if a == nil {
		a = &audience{seen: make(map[string]uint64)}
		s.roster[strings.Clone(name)] = a
	}
	return a
}

// Begin implements webhook.Roster.
func (s *Store) Begin(ctx context.Context, audience string) (uint64, error) {
	if err := s.lock(ctx); err != nil {
		return 0, err
	}
	defer s.mu.Unlock()
	a := s.audience(audience)
	a.generation++
	return a.generation, nil
}

// Join implements webhook.Roster.
func (s *Store) Join(ctx context.Context, audience string, generation uint64, users []string, announce func(string) ([]webhook.Delivery, error)) (int, error) {
	for _, user := range users {
		if len(user) < 1 || len(user) > 255 {
			return 0, fmt.Errorf("memqueue: member of %d bytes, not 1 to 255", len(user))
		}
	}
	notices := make(map[string][]*item)
	for {
		// Who is new is found first, and announced without the lock; it is
		// found again if somebody left in the meantime.
		joining, err := s.newcomers(ctx, audience, users, notices)
		if err != nil {
			return 0, err
		}
		for _, user := range joining {
			if notices[user], err = announced(user, announce); err != nil {
				return 0, err
			}
		}
		joined, complete, err := s.join(ctx, audience, generation, users, notices)
		if err != nil || complete {
			return joined, err
		}
	}
}

// announced returns the deliveries that announce a user, ready to be stored. Their ids
// are new, so they do not take the place of others in the dedup window.
func announced(user string, announce func(string) ([]webhook.Delivery, error)) ([]*item, error) {
	ds, err := announce(user)
	if err != nil {
		return nil, err
	}
	items := make([]*item, len(ds))
	for i := range ds {
		if items[i], err = newItem(&ds[i]); err != nil {
			return nil, err
		}
	}
	return items, nil
}

// announce queues the deliveries that announce who joined or left, unless they and extra
// bytes do not fit.
func (s *Store) announce(items []*item, extra int64) error {
	bytes := extra
	for _, it := range items {
		bytes += size(&it.Delivery)
	}
	if err := s.room(bytes); err != nil {
		return err
	}
	for _, it := range items {
		s.add(it)
		it.queue().push(it)
		s.tell(it.lane)
	}
	s.bytes += extra
	return nil
}

// join makes members of users, unless notices lacks that of one.
func (s *Store) join(ctx context.Context, audience string, generation uint64, users []string, notices map[string][]*item) (joined int, complete bool, err error) {
	if err := s.lock(ctx); err != nil {
		return 0, false, err
	}
	defer s.mu.Unlock()
	a := s.audience(audience)
	var items []*item
	var extra int64
	told := make(map[string]bool)
	for _, user := range users {
		if _, member := a.seen[user]; member || told[user] {
			continue
		}
		told[user] = true
		ps, ok := notices[user]
		if !ok {
			return 0, false, nil
		}
		items = append(items, ps...)
		extra += int64(len(user)) + overhead
	}
	if err := s.announce(items, extra); err != nil {
		return 0, false, err
	}
	for _, user := range users {
		was, member := a.seen[user]
		if member {
			a.seen[user] = max(was, generation)
			continue
		}
		user = strings.Clone(user)
		a.seen[user] = generation
		a.unsorted = true
		joined++
	}
	return joined, true, nil
}

// newcomers returns those of users that are not in the audience and have no
// notice yet.
func (s *Store) newcomers(ctx context.Context, audience string, users []string, notices map[string][]*item) ([]string, error) {
	if err := s.lock(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	a := s.roster[audience]
	var joining []string
	for _, user := range users {
		if a != nil {
			if _, member := a.seen[user]; member {
				continue
			}
		}
		if _, ok := notices[user]; !ok {
			notices[user] = nil // each is announced once
			joining = append(joining, user)
		}
	}
	return joining, nil
}

// Leave implements webhook.Roster.
func (s *Store) Leave(ctx context.Context, audience string, generation uint64, from string, limit int, announce func(string) ([]webhook.Delivery, error)) (string, int, error) {
	last, leaving, err := s.leavers(ctx, audience, generation, from, limit)
	if err != nil {
		return "", 0, err
	}
	notices := make([][]*item, len(leaving))
	for i, user := range leaving {
		if notices[i], err = announced(user, announce); err != nil {
			return "", 0, err
		}
	}
	if err := s.lock(ctx); err != nil {
		return "", 0, err
	}
	defer s.mu.Unlock()
	a := s.roster[audience]
	var items []*item
	left := leaving[:0]
	for i, user := range leaving {
		// Unless it was seen again in the meantime.
		if was, member := a.seen[user]; member && was < generation {
			items = append(items, notices[i]...)
			left = append(left, user)
		}
	}
	if err := s.announce(items, 0); err != nil {
		return "", 0, err
	}
	for _, user := range left {
		delete(a.seen, user)
		s.bytes -= int64(len(user)) + overhead
	}
	return last, len(left), nil
}

// leavers goes through up to limit members after from. It returns the last of
// them, "" if there are no more, and those last seen before generation.
func (s *Store) leavers(ctx context.Context, audience string, generation uint64, from string, limit int) (last string, leaving []string, err error) {
	if err := s.lock(ctx); err != nil {
		return "", nil, err
	}
	defer s.mu.Unlock()
	a := s.roster[audience]
	if a == nil {
		return "", nil, nil
	}
	n := 0
	for _, user := range after(a.sorted(), from) {
		was, member := a.seen[user]
		if !member {
			continue
		}
		if n == max(limit, 1) {
			return last, leaving, nil
		}
		n++
		last = user
		if was < generation {
			leaving = append(leaving, user)
		}
	}
	return "", leaving, nil
}

// Members implements webhook.Roster.
func (s *Store) Members(ctx context.Context, audience, from string) iter.Seq2[string, error] {
	return storekit.Pages(from, func(from string) ([]string, string, error) {
		return s.membersAfter(ctx, audience, from)
	})
}

// membersAfter returns the next members after the one named from, and the last
// it has looked at, "" if there are no more.
func (s *Store) membersAfter(ctx context.Context, audience, from string) (users []string, more string, err error) {
	if err := s.lock(ctx); err != nil {
		return nil, "", err
	}
	defer s.mu.Unlock()
	a := s.roster[audience]
	if a == nil {
		return nil, "", nil
	}
	for i, user := range after(a.sorted(), from) {
		if i == 1024 {
			return users, more, nil
		}
		more = user
		if _, member := a.seen[user]; member {
			users = append(users, user)
		}
	}
	return users, "", nil
}

// Audiences implements webhook.Rosters.
func (s *Store) Audiences(ctx context.Context) iter.Seq2[webhook.RosterAudience, error] {
	return page(ctx, s, func() (all []webhook.RosterAudience) {
		for _, name := range slices.Sorted(maps.Keys(s.roster)) {
			if g := s.roster[name].generation; g > 0 {
				all = append(all, webhook.RosterAudience{Name: name, Generation: g})
			}
		}
		return all
	})
}
