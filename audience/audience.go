// Package audience tells destinations which users are members of an audience, and which users must
// be deleted. It makes events for this, which a webhook.Forwarder forwards.
//
//	announcer := audience.New(forwarder, roster)
//	vips, err := announcer.Audience("crm", "VIP Users")
//	result, err := vips.Sync(ctx, audience.Users(slices.Values(ids)))
//	err = announcer.Delete(ctx, audience.Deletion{Destinations: []string{"crm"}}, audience.Users(slices.Values(ids)))
//
// Sync takes the whole list of members and sends only the changes. In the example, a change is an
// identify with the trait vip_users, which is true for a user who joins and false for a user who
// leaves. An incomplete list is refused if more than half of the members would leave. A user id has 1 to 255 bytes. Lists may have any length, because they are streamed. While
// the queue is full, Sync and Delete wait. After an error, call them again with the same list.
//
// A Roster keeps the members: memroster in memory, fileroster in a folder, and pgqueue.NewRoster and
// natsqueue.NewRoster in a shared store. Package rostertest tests them, and Rosters of your own.
package audience

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"

	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/webhook"
)

// A Forwarder, such as a *webhook.Forwarder, forwards announcements.
type Forwarder interface {
	// ForwardEvents accepts all events for all destinations and returns nil once they are durable, or
	// accepts none and returns an error. The events are Unfiltered. A call without events only returns
	// the error that an event would get.
	ForwardEvents(ctx context.Context, destinations []string, events ...event.Event) error
}

// An Announcer announces audiences and deletions. Its methods may be called concurrently.
type Announcer struct {
	forwarder Forwarder
	roster    Roster
	syncing   sync.Map // the ids of the audiences that are being synced
}

// New returns an Announcer that keeps audiences in roster. Without a roster, only Delete works.
func New(f Forwarder, roster Roster) *Announcer {
	return &Announcer{forwarder: f, roster: roster}
}

// Audience returns the audience of a destination that has the given name. Two names with the same
// TraitName stand for the same audience. The first Sync of an audience creates it.
//
// The error is webhook.ErrUnsupported without a Roster, and webhook.ErrUnknownDestination for an
// unknown destination. TraitName must have 1 to 255 bytes, and the destination's id no zero byte.
func (a *Announcer) Audience(destination, name string) (*Audience, error) {
	if a.roster == nil {
		return nil, webhook.ErrUnsupported
	}
	err := a.forwarder.ForwardEvents(context.Background(), []string{destination})
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
	return &Audience{announcer: a, id: destination + separator + trait, destination: destination, trait: trait, name: name}, nil
}

const separator = "\x00" // between the destination and the trait in the id of an audience

// An Audience is a named set of users at a destination. An identify announces each user who joins,
// with a trait that is true, and each user who leaves, with the same trait set to false. The
// methods may be called concurrently.
type Audience struct {
	announcer   *Announcer
	id          string // in the Roster
	destination string
	trait       string
	name        string // as the caller has spelled it, or the trait if that is too long
	shrink      bool   // more than half of the members may leave by a Sync
}

// Trait returns the name of the trait that is true for members.
func (a *Audience) Trait() string { return a.trait }

// Create stores the audience without members, so that Announcer.Audiences yields it, unless it was
// synced or created before. It returns what is stored.
func (a *Audience) Create(ctx context.Context) (Info, error) {
	info := Info{Destination: a.destination, Trait: a.trait}
	if err := a.announcer.forwarder.ForwardEvents(ctx, []string{a.destination}); err != nil { // only a check
		return info, err
	}
	err := a.announcer.roster.UpdateAudience(ctx, a.id, func(rec *Record, _ Members) error {
		if rec.Generation == 0 {
			rec.begin(a.name)
		}
		info.Name, info.Generation = rec.Name, rec.Generation
		return nil
	})
	return info, err
}

// Members yields the members, in the order of their bytes. An error ends the sequence.
func (a *Audience) Members(ctx context.Context) iter.Seq2[string, error] {
	return a.announcer.roster.Members(ctx, a.id)
}

// Info describes an audience, without its members.
type Info struct {
	Destination, Trait string // identify the audience; see Announcer.Audience and TraitName
	Name               string // given to the first Sync or Create, or Trait if it has more than 255 bytes
	Generation         uint64 // counts the syncs of the audience; a Create counts as a sync
}

// Audiences yields the audiences that were synced or created, sorted by destination and trait, even
// of unknown destinations. An error ends the list: without a Roster webhook.ErrUnsupported.
func (a *Announcer) Audiences(ctx context.Context) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		if a.roster == nil {
			yield(Info{}, webhook.ErrUnsupported)
			return
		}
		for e, err := range a.roster.Audiences(ctx) {
			destination, trait, _ := strings.Cut(e.ID, separator)
			if !yield(Info{Destination: destination, Trait: trait, Name: e.Name, Generation: e.Generation}, err) {
				return
			}
		}
	}
}

// messageID returns the message id of an event about a user, always the same for the same event.
// nth is the generation of an audience, or the number of a source, and of is the id of the audience
// or the deletion. The message id does not reveal the user.
func messageID(what string, nth uint64, of, user string) string {
	b := append(make([]byte, 0, 1024), what...)
	b = binary.AppendUvarint(b, nth)
	b = binary.AppendUvarint(b, uint64(len(of)))
	sum := sha256.Sum256(append(append(b, of...), user...))
	return base64.RawURLEncoding.EncodeToString(sum[:18])
}
