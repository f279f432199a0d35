package audience

import (
	"context"
	"iter"
)

// An Audience is a named set of users at a destination. An identify announces each user who joins,
// with a trait that is true, and each user who leaves, with the same trait set to false. The
// methods of an Audience may be called concurrently.
type Audience struct {
	announcer   *Announcer
	roster      Roster
	id          string // in the Roster
	destination string
	trait       string
	name        string // as the caller has spelled it, or the trait if that is too long
}

// Trait returns the name of the trait that is true for members.
func (a *Audience) Trait() string { return a.trait }

// Create stores the audience without members, so that Announcer.Audiences yields it. If the
// audience was synced or created before, Create does nothing.
func (a *Audience) Create(ctx context.Context) error {
	if err := a.announcer.forwarder.Announce(ctx, []string{a.destination}); err != nil { // only a check
		return err
	}
	return a.roster.UpdateAudience(ctx, a.id, func(rec *Record, _ Members) error {
		if rec.Generation == 0 {
			rec.begin(a.name)
		}
		return nil
	})
}

// Members yields the members, in the order of their bytes. An error ends the sequence.
func (a *Audience) Members(ctx context.Context) iter.Seq2[string, error] {
	return a.roster.Members(ctx, a.id, "")
}
