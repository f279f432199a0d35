// Package audience tells destinations who is a member of an audience, and which users are to be
// deleted. It makes events of both and has a webhook.Forwarder forward them.
//
//	announcer := audience.New(forwarder, store)
//	vips, err := announcer.Audience("crm", "VIP Users")
//	result, err := vips.Sync(ctx, audience.Users(slices.Values(ids)))
//
// Who is a member is kept in a Roster. The stores memqueue, filequeue, pgqueue and natsqueue
// are Rosters. Package rostertest tests them, and others.
package audience

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"

	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/webhook"
)

// ErrSyncing says that a sync of the same audience is in progress.
var ErrSyncing = errors.New("audience: a sync of this audience is in progress")

// A Forwarder forwards announcements, as *webhook.Forwarder does.
type Forwarder interface {
	// Announce accepts events for destinations, all of them or none and an error, whatever
	// the filters of the destinations are, and returns nil once they are durable. Without events it returns an error for destinations
	// that it would not take.
	Announce(ctx context.Context, destinations []string, events ...event.Event) error
}

// An Announcer tells destinations of audiences and deletions. Its methods may be called
// concurrently.
type Announcer struct {
	forwarder Forwarder
	roster    Roster
	syncing   sync.Map // the ids of the audiences that are being synced
}

// New returns an Announcer that keeps audiences in roster, which may be nil if there are
// none.
func New(f Forwarder, roster Roster) *Announcer {
	return &Announcer{forwarder: f, roster: roster}
}

// check returns an error for destinations that the forwarder would not take.
func (a *Announcer) check(ctx context.Context, destinations ...string) error {
	return a.forwarder.Announce(ctx, destinations)
}

// Audience returns the audience with a name at a destination. Names with the same TraitName
// are the same audience. The audience is created by its first Sync. It returns
// webhook.ErrUnsupported if there is no Roster, webhook.ErrUnknownDestination, and an error
// for a name whose TraitName is empty or has more than 255 bytes, and for a destination with a
// zero byte in its id.
//
// The methods of an Audience may be called concurrently; see Sync.
func (a *Announcer) Audience(destination, name string) (*Audience, error) {
	if a.roster == nil {
		return nil, webhook.ErrUnsupported
	}
	err := a.check(context.Background(), destination)
	if err != nil && !errors.Is(err, webhook.ErrClosed) {
		return nil, err
	}
	if strings.Contains(destination, separator) {
		return nil, fmt.Errorf("audience: the id of the destination %q has a zero byte", destination)
	}
	trait := TraitName(name)
	if trait == "" {
		return nil, fmt.Errorf("audience: the name %q has no letter or digit", name)
	}
	if len(trait) > maxName {
		return nil, fmt.Errorf("audience: name of %d bytes, the limit is %d", len(trait), maxName)
	}
	if len(name) > maxName {
		name = trait
	}
	return &Audience{Announcer: a, id: destination + separator + trait, destination: destination, trait: trait, name: name}, nil
}

// separator is between the destination and the trait in the id of an audience.
const separator = "\x00"

// Info is what is kept of an audience beside its members.
type Info struct {
	// Destination and Trait identify it; see Announcer.Audience and TraitName.
	Destination, Trait string
	// Name is what the audience was called when it was first synced or created; it is Trait
	// for names of over 255 bytes.
	Name string
	// Generation counts its syncs, and its Create.
	Generation uint64
}

// Audiences yields the audiences that were synced or created, by destination and trait, also
// those of destinations that are not known any more. An error ends it:
// webhook.ErrUnsupported if there is no Roster.
func (a *Announcer) Audiences(ctx context.Context) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		if a.roster == nil {
			yield(Info{}, webhook.ErrUnsupported)
			return
		}
		for e, err := range a.roster.Audiences(ctx) {
			if err != nil {
				yield(Info{}, err)
				return
			}
			destination, trait, _ := strings.Cut(e.ID, separator)
			if !yield(Info{Destination: destination, Trait: trait, Name: e.Name, Generation: e.Generation}, nil) {
				return
			}
		}
	}
}
