package audience

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// An Update is a function that changes an audience in a store. It has the methods of Roster that
// change an audience. A store embeds an Update, and implements only Members and Audiences itself.
//
// The function calls f with the record and the members of the audience. It stores either all
// changes that f makes to both, or none of them. For an unknown audience the record is the zero
// Record. If f returns an error, the audience stays as it was, and the Update returns an error that
// wraps the error of f. On a shared store, the function may call f again, after another node has
// changed the audience.
//
// If a store cannot make all changes at once, it must change the members before the record.
// Then each method can be repeated after a crash.
type Update func(ctx context.Context, audience string, f func(rec *Record, members Members) error) error

// Members gives access to the members of an audience during an Update. All lists of users and
// members are sorted by the bytes of the users, with each user once. A Member with the generation 0
// is a user who is not a member.
type Members interface {
	// Get returns a Member for each user in the argument users, even if the user is not a member.
	Get(users []string) ([]Member, error)
	// Next returns the first max members whose ids are greater than the argument after, or fewer if
	// there are no more.
	Next(after string, max int) ([]Member, error)
	// Set stores the generation for each user in the argument users, which is never empty. The
	// generation 0 removes the users.
	Set(users []string, generation uint64) error
}

// A Member is a user, with the generation of the latest sync whose list had the user.
type Member struct {
	User       string
	Generation uint64
}

// Begin is Roster.Begin.
func (u Update) Begin(ctx context.Context, audience, name string) (generation uint64, inFlight Chunk, err error) {
	if n := len(audience); n < 1 || n > maxID || len(name) > maxName {
		return 0, Chunk{}, fmt.Errorf("audience: id of %d bytes, not 1 to %d, or name of %d bytes, over %d", n, maxID, len(name), maxName)
	}
	err = u(ctx, audience, func(rec *Record, _ Members) error {
		if rec.Generation == 0 {
			rec.Name = strings.Clone(name)
		}
		rec.Generation++
		generation, inFlight = rec.Generation, rec.InFlight
		return nil
	})
	return generation, inFlight, err
}

// Join is Roster.Join.
func (u Update) Join(ctx context.Context, audience string, generation uint64, users []string) (c Chunk, err error) {
	for _, user := range users {
		if len(user) < 1 || len(user) > MaxUser {
			return c, fmt.Errorf("audience: member of %d bytes, not 1 to %d", len(user), MaxUser)
		}
	}
	users = slices.Compact(slices.Sorted(slices.Values(users)))
	err = u(ctx, audience, func(rec *Record, members Members) error {
		if err := rec.idle(generation); err != nil {
			return err
		}
		found, err := members.Get(users)
		if err != nil {
			return err
		}
		var joining, older []string
		for _, m := range found {
			switch m.Generation {
			case generation:
			case 0:
				joining = append(joining, strings.Clone(m.User)) // m.User may be a part of a long string
			default:
				older = append(older, m.User)
			}
		}
		c = NewChunk(generation, false, joining)
		rec.InFlight = c
		if len(older) == 0 {
			return nil
		}
		return members.Set(older, generation)
	})
	return c, err
}

// Leave is Roster.Leave.
func (u Update) Leave(ctx context.Context, audience string, generation uint64, after string, max int) (c Chunk, last string, err error) {
	err = u(ctx, audience, func(rec *Record, members Members) error {
		if err := rec.idle(generation); err != nil {
			return err
		}
		next, err := members.Next(after, max)
		if err != nil {
			return err
		}
		var leaving []string
		for _, m := range next {
			if m.Generation != generation && m.Generation != 0 {
				leaving = append(leaving, m.User)
			}
		}
		if last = ""; len(next) == max {
			last = next[max-1].User
		}
		c = NewChunk(generation, true, leaving)
		rec.InFlight = c
		return nil
	})
	return c, last, err
}

// Confirm is Roster.Confirm.
func (u Update) Confirm(ctx context.Context, audience string, generation uint64, n int) error {
	return u(ctx, audience, func(rec *Record, members Members) error {
		if err := rec.owned(generation); err != nil {
			return err
		}
		c := rec.InFlight
		rec.InFlight = c.Rest(n)
		users := c.Users[:min(n, len(c.Users))]
		switch {
		case len(users) == 0:
			return nil
		case c.Left:
			return members.Set(users, 0)
		default:
			return members.Set(users, c.Generation)
		}
	})
}
