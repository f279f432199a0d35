package audience

import (
	"context"
	"crypto/rand"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/hookferry/analytics/event"
)

// A Deletion is a request to delete users.
type Deletion struct {
	// ID identifies the request, in up to 255 bytes. Calls of Delete with the same ID belong to the
	// same request. Each call without an ID is a new one.
	ID string
	// Destinations lists the destinations that get an event for each user. It has a destination
	// once for each affected source that has webhooks enabled. A destination that is in the list
	// several times gets as many events for a user. The events for a disabled or paused destination
	// wait until it is enabled or resumed.
	Destinations []string
}

// Delete tells the destinations of a Deletion that users must be deleted, with an event of the type
// "delete" for each user. It returns when these events are durable. It does not keep the users in
// memory. A user id has 1 to 8192 bytes. Any other id ends the call with a *UserError. If the ID of
// the Deletion is too long, or the forwarder does not know a destination, Delete forwards nothing.
//
// After an error or a crash, the events that were forwarded before remain. Of the users before the
// error, at most the last 2048 may lack events. Call Delete again with the same ID and all users,
// in any order. It leaves out events whose ids the dedup window of the store remembers, so a user
// who is in the list twice gets only one event.
//
// While the queue is full, Delete waits for room until ctx ends. Then the error wraps the error of
// ctx and webhook.ErrQueueFull. After Shutdown of the forwarder it is webhook.ErrClosed, even in
// the middle of a list. Delete may be called concurrently.
func (a *Announcer) Delete(ctx context.Context, d Deletion, users iter.Seq2[string, error]) error {
	if err := a.forwarder.ForwardEvents(ctx, d.Destinations); err != nil { // only a check
		return err
	}
	if d.ID == "" {
		d.ID = rand.Text()
	}
	if len(d.ID) > maxName {
		return fmt.Errorf("audience: deletion ID of %d bytes, the limit is %d", len(d.ID), maxName)
	}
	// A destination that occurs k times in d.Destinations has k affected sources, and is in rounds[0]
	// to rounds[k-1]. Round n forwards the events for the source n of its destinations.
	var rounds [][]string
	for _, destination := range d.Destinations {
		n := slices.IndexFunc(rounds, func(round []string) bool { return !slices.Contains(round, destination) })
		if n < 0 {
			n, rounds = len(rounds), append(rounds, nil)
		}
		rounds[n] = append(rounds[n], destination)
	}
	var room backpressure
	return inChunks(users, event.MaxUserID, len(d.Destinations), func(users []string) (err error) {
		events := make([]event.Event, len(users))
		for i, user := range users {
			if events[i], err = event.Delete(user, time.Now()); err != nil {
				return err
			}
			events[i].Unfiltered = true
		}
		for nth, destinations := range rounds {
			for i, user := range users { // the dedup window recognises these ids if Delete is called again
				events[i].ID = messageID("deletion", uint64(nth), d.ID, user)
			}
			err := inParts(ctx, &room, events, func(part []event.Event) error {
				return a.forwarder.ForwardEvents(ctx, destinations, part...)
			}, func(int) error { return nil })
			if err != nil {
				return err
			}
		}
		return nil
	})
}
