package memqueue

import (
	"context"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/hookferry/analytics/audience"
	"github.com/hookferry/analytics/webhook/storekit"
)

// members holds the members of one audience.
type members struct {
	audience.Record
	seen     map[string]uint64 // by member: the latest generation that listed it
	order    []string          // sorted; may also hold users who have left
	unsorted bool              // members joined since order was built
}

// A roster implements audience.Roster. The map is keyed by audience id.
type roster struct {
	store     *Store
	audiences map[string]*members
}

// after returns the members that sort after user, in order. Some of them may have left: look in
// m.seen.
func (m *members) after(user string) []string {
	if m.unsorted || len(m.order) > 2*len(m.seen)+1024 {
		m.order, m.unsorted = slices.Sorted(maps.Keys(m.seen)), false
	}
	i, found := slices.BinarySearch(m.order, user)
	if found {
		i++
	}
	return m.order[i:]
}

// Begin implements audience.Roster.
func (r *roster) Begin(ctx context.Context, id, name string) (uint64, audience.Chunk, error) {
	if err := audience.CheckID(id, name); err != nil {
		return 0, audience.Chunk{}, err
	}
	if err := r.store.lock(ctx); err != nil {
		return 0, audience.Chunk{}, err
	}
	defer r.store.mu.Unlock()
	m := r.audiences[id]
	if m == nil {
		m = &members{Record: audience.Record{Name: strings.Clone(name)}, seen: make(map[string]uint64)}
		r.audiences[strings.Clone(id)] = m
	}
	m.Generation++
	return m.Generation, m.InFlight, nil
}

// owned locks the store and returns the audience, for a call on behalf of a sync's generation. It
// returns check's error, or ErrSuperseded if there is no such audience; then nothing is locked.
func (r *roster) owned(ctx context.Context, id string, generation uint64, check func(*audience.Record, uint64) error) (*members, error) {
	if err := r.store.lock(ctx); err != nil {
		return nil, err
	}
	m, err := r.audiences[id], error(audience.ErrSuperseded)
	if m != nil {
		err = check(&m.Record, generation)
	}
	if err != nil {
		r.store.mu.Unlock()
		return nil, err
	}
	return m, nil
}

// Join implements audience.Roster. New members count toward Config.MaxBytes from Join on, before
// Confirm.
func (r *roster) Join(ctx context.Context, id string, generation uint64, users []string) (audience.Chunk, error) {
	if err := audience.CheckUsers(users); err != nil {
		return audience.Chunk{}, err
	}
	m, err := r.owned(ctx, id, generation, (*audience.Record).Idle)
	if err != nil {
		return audience.Chunk{}, err
	}
	defer r.store.mu.Unlock()
	var joining []string
	bytes := int64(0)
	for _, user := range slices.Compact(slices.Sorted(slices.Values(users))) {
		if _, member := m.seen[user]; member {
			m.seen[user] = generation
		} else {
			joining = append(joining, strings.Clone(user))
			bytes += int64(len(user)) + overhead
		}
	}
	if err := r.store.room(bytes); err != nil {
		return audience.Chunk{}, err
	}
	r.store.bytes += bytes
	m.InFlight = audience.NewChunk(generation, false, joining)
	return m.InFlight, nil
}

// Leave implements audience.Roster.
func (r *roster) Leave(ctx context.Context, id string, generation uint64, after string, max int) (_ audience.Chunk, next string, err error) {
	m, err := r.owned(ctx, id, generation, (*audience.Record).Idle)
	if err != nil {
		return audience.Chunk{}, "", err
	}
	defer r.store.mu.Unlock()
	var leaving []string
	n, last := 0, ""
	for _, user := range m.after(after) {
		seen, member := m.seen[user]
		if !member {
			continue
		}
		if n == max {
			next = last
			break
		}
		n++
		if last = user; seen != generation {
			leaving = append(leaving, user)
		}
	}
	m.InFlight = audience.NewChunk(generation, true, leaving)
	return m.InFlight, next, nil
}

// Confirm implements audience.Roster.
func (r *roster) Confirm(ctx context.Context, id string, generation uint64, n int) error {
	m, err := r.owned(ctx, id, generation, (*audience.Record).Owned)
	if err != nil {
		return err
	}
	defer r.store.mu.Unlock()
	c := m.InFlight
	for _, user := range c.Users[:min(n, len(c.Users))] {
		if c.Left {
			delete(m.seen, user)
			r.store.bytes -= int64(len(user)) + overhead
		} else {
			m.seen[user], m.unsorted = c.Generation, true
		}
	}
	m.InFlight = c.Rest(n)
	return nil
}

// Members implements audience.Roster.
func (r *roster) Members(ctx context.Context, id, after string) iter.Seq2[string, error] {
	return storekit.Pages(after, func(after string) (users []string, more string, err error) {
		if err := r.store.lock(ctx); err != nil {
			return nil, "", err
		}
		defer r.store.mu.Unlock()
		m := r.audiences[id]
		if m == nil {
			return nil, "", nil
		}
		for i, user := range m.after(after) {
			if i == 1024 {
				return users, more, nil
			}
			more = user
			if _, member := m.seen[user]; member {
				users = append(users, user)
			}
		}
		return users, "", nil
	})
}

// Audiences implements audience.Roster.
func (r *roster) Audiences(ctx context.Context) iter.Seq2[audience.Entry, error] {
	return page(ctx, r.store, func() (all []audience.Entry) {
		for _, id := range slices.Sorted(maps.Keys(r.audiences)) {
			m := r.audiences[id]
			all = append(all, audience.Entry{ID: id, Name: m.Name, Generation: m.Generation})
		}
		return all
	})
}
