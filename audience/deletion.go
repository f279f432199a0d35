package audience

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"iter"
	"time"

	"github.com/hookferry/analytics/event"
)

// A Deletion is a request to delete users.
type Deletion struct {
	// ID identifies the deletion request, in up to 255 bytes. Calls of Delete with the same ID
	// belong to the same request. Each call without an ID is a new request.
	ID string
	// Destinations lists the destinations that get an event for each user. A destination is listed
	// once for each affected source that has webhooks enabled. So a destination of several sources
	// is listed several times, and gets several events for each user. The events for a disabled or
	// paused destination wait until it is enabled or resumed.
	Destinations []string
}

// Delete tells the destinations of a Deletion that users must be deleted, with an event of the type
// "delete" for each user. It returns when these events are durable. It does not keep the users in
// memory. A user id has 1 to 8192 bytes. Any other id ends the call with a *UserError. If the ID of
// the Deletion is too long, or the forwarder does not know a destination, Delete forwards nothing.
//
// After an error or a crash, the events that were forwarded before remain. Of the users that the
// list yielded before the error, at most the last 2048 may lack events. Call Delete again with the
// same ID and all users, in any order. Delete leaves out an event if the dedup window of the store
// remembers its ID, so a user who is in the list twice gets only one event.
//
// While the queue is full, Delete waits for room until ctx ends. Then the error wraps the error of
// ctx and webhook.ErrQueueFull. After Shutdown of the forwarder Delete returns webhook.ErrClosed,
// even in the middle of a list. Delete may be called concurrently.
func (a *Announcer) Delete(ctx context.Context, d Deletion, users iter.Seq2[string, error]) error {
	if err := a.forwarder.Announce(ctx, d.Destinations); err != nil { // only a check
		return err
	}
	if d.ID == "" {
		d.ID = rand.Text()
	}
	if len(d.ID) > maxName {
		return fmt.Errorf("audience: deletion ID of %d bytes, the limit is %d", len(d.ID), maxName)
	}
	// A destination that occurs k times in d.Destinations has k affected sources, and is in
	// rounds[0] to rounds[k-1]. Round n forwards the events for the source n of its destinations.
	var rounds [][]string
	times := make(map[string]int)
	for _, destination := range d.Destinations {
		n := times[destination]
		if times[destination]++; n == len(rounds) {
			rounds = append(rounds, nil)
		}
		rounds[n] = append(rounds[n], destination)
	}
	// Each event becomes a delivery for each destination, and maxChunk bounds the deliveries.
	limit := max(maxChunk/len(d.Destinations), 1)
	room := newBackpressure()
	var (
		chunk []event.Event
		names []string // the users of chunk
		size  int
	)
	flush := func() error {
		for nth, destinations := range rounds {
			for i := range chunk {
				chunk[i].ID = d.messageID(names[i], uint64(nth))
			}
			if err := a.announce(ctx, destinations, chunk, &room, func(int) error { return nil }); err != nil {
				return err
			}
		}
		chunk, names, size = chunk[:0], names[:0], 0
		return nil
	}
	err := eachUser(users, event.MaxUserID, func(user string) error {
		e, err := event.Delete(user, time.Now())
		if err != nil {
			return err
		}
		chunk, names = append(chunk, e), append(names, user)
		if size += len(e.Body) * len(d.Destinations); len(chunk) == limit || size >= maxChunkBytes {
			return flush()
		}
		return nil
	})
	if err == nil {
		err = flush()
	}
	return err
}

// messageID returns the message id of the event about a user, for the nth source of a destination.
// All calls of Delete for the same request make the same id, so that the dedup window recognises a
// repeated event. The id does not reveal the user.
func (d *Deletion) messageID(user string, nth uint64) string {
	b := make([]byte, 0, 64+len(d.ID)+len(user))
	b = append(b, "deletion"...)
	b = binary.AppendUvarint(b, nth)
	b = binary.AppendUvarint(b, uint64(len(d.ID)))
	b = append(b, d.ID...)
	b = append(b, user...)
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}
