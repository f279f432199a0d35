package memqueue

import (
	"maps"
	"slices"

	"github.com/hookferry/analytics/audience"
)

// members holds the members of one audience, and implements audience.Members.
type members struct {
	record audience.Record
	seen   map[string]uint64 // by user, the latest generation whose list had this member
	// order has the members, sorted, and perhaps users who have left. It is nil after a user
	// joined.
	order []string
	// During an UpdateAudience, set has the users that f has passed to Set, and to their generation.
	set []string
	to  uint64
}

// joining returns how many bytes the users of a chunk will count for when they become members. If
// the chunk has users who leave, the result is 0.
func joining(c audience.Chunk) (bytes int64) {
	if !c.Left {
		for _, user := range c.Users {
			bytes += memberSize(user)
		}
	}
	return bytes
}

func memberSize(user string) int64 { return int64(len(user)) + overhead }

// Get implements audience.Members.
func (m *members) Get(users []string) ([]audience.Member, error) {
	found := make([]audience.Member, len(users))
	for i, user := range users {
		found[i] = audience.Member{User: user, Generation: m.seen[user]}
	}
	return found, nil
}

// Next implements audience.Members.
func (m *members) Next(after string, max int) (next []audience.Member, _ error) {
	if m.order == nil || len(m.order) > 2*len(m.seen)+1024 {
		m.order = slices.Sorted(maps.Keys(m.seen))
	}
	i, found := slices.BinarySearch(m.order, after)
	if found {
		i++
	}
	for ; i < len(m.order) && len(next) < max; i++ {
		if generation, member := m.seen[m.order[i]]; member {
			next = append(next, audience.Member{User: m.order[i], Generation: generation})
		}
	}
	return next, nil
}

// Set implements audience.Members.
func (m *members) Set(users []string, generation uint64) error {
	m.set, m.to = users, generation
	return nil
}
