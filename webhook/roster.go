package webhook

import (
	"context"
	"iter"
)

// Roster is the part of a store that remembers who is in an audience. The
// members are user ids of 1 to 255 bytes. Each audience has a generation,
// which is raised at the start of each sync; every member carries the
// generation in which it was last seen.
//
// The ids of the deliveries that announce returns are new. A store need not
// remember them, so that a large audience leaves the window of deduplication to
// others. Announce is called once for a user in a call, at most, and with no
// lock held.
//
// Join and Leave store the members and the deliveries that announce them
// together. A store that cannot do so stores the deliveries first, so that a
// crash repeats an announcement rather than losing one.
type Roster interface {
	// Begin raises the generation of audience and returns it: 1 for an
	// audience that was not known.
	Begin(ctx context.Context, audience string) (generation uint64, err error)
	// Join marks users as seen in generation. For each that was no member
	// before, it makes it one and puts the deliveries that announce returns.
	// It returns how many joined.
	Join(ctx context.Context, audience string, generation uint64, users []string, announce func(user string) ([]Delivery, error)) (joined int, err error)
	// Leave goes through up to max members after the one named after ("" for
	// the first), in the order of their bytes. It removes those last seen
	// before generation and puts the deliveries that announce returns for
	// each. It returns the last member it looked at, "" once there are no
	// more, and how many left.
	Leave(ctx context.Context, audience string, generation uint64, after string, max int, announce func(user string) ([]Delivery, error)) (last string, left int, err error)
	// Members yields the members after the one named after, in the order of
	// their bytes. It holds no lock between two yields.
	Members(ctx context.Context, audience, after string) iter.Seq2[string, error]
}

// Rosters is implemented by a Roster that can list its audiences.
type Rosters interface {
	// Audiences yields the audiences that Begin was called for, in the order of
	// the bytes of their names. It holds no lock between two yields. An error
	// ends it.
	Audiences(ctx context.Context) iter.Seq2[RosterAudience, error]
}

// A RosterAudience is an audience in a Roster.
type RosterAudience struct {
	// Name is what the Roster was called with.
	Name       string
	Generation uint64
}
