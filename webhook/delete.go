package webhook

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"iter"

	"github.com/hookferry/analytics/event"
)

// Delete accepts a request to delete a user: it tells the destinations, with a
// body of the type "delete", and returns nil once that is durable, like Forward.
// There is one destination for each affected source that has webhooks enabled;
// one that is given several times serves several sources, and is told once for
// each. One that is disabled or paused is told once it no longer is.
//
// The error is a *event.CallError for a user id that is not 1 to 8192 bytes, and else
// as of Forward. Each call is a request of its own, also for the same user.
func (f *Forwarder) Delete(ctx context.Context, userID string, destinations ...string) error {
	if err := f.check(destinations); err != nil {
		return err
	}
	now, trace := f.now(), f.trace(ctx)
	ps := make([]Put, 0, len(destinations))
	for _, id := range destinations {
		e, err := event.Delete(userID, now)
		if err != nil {
			return err
		}
		ps = append(ps, Put{Delivery: deliveryOf(&e, id, deliveryID(&e), now.UTC(), trace)})
	}
	_, err := f.put(ctx, ps, new(putSpace))
	return err
}

// EraseUser removes the deliveries, the dead letters and the history of a user from the
// store, for every destination. It returns how many there were, and how many it passed over
// because they are claimed, as for an attempt: it may be called again for these. Destinations
// are not told; see Delete. It goes by Delivery.User: what is stored for another user and
// names this one in its body stays, as do the members of audiences.
//
// The error is a *event.CallError for a user id that is not 1 to 8192 bytes, or the store's.
func (f *Forwarder) EraseUser(ctx context.Context, userID string) (erased, claimed int, err error) {
	e, err := event.Delete(userID, f.now()) // for the digest of a long id
	if err != nil {
		return 0, 0, err
	}
	return f.config.Store.Erase(ctx, e.User)
}

// A Deletion is a request to delete users.
type Deletion struct {
	// ID names the request, 1 to 255 bytes. What is asked for again under the
	// same ID is the same request.
	ID string
	// Destinations are those that are told, as of Delete: one for each affected
	// source that has webhooks enabled.
	Destinations []string
}

// DeleteUsers accepts a request to delete users, each of whom the destinations
// are told of as Delete tells them. Users are not kept in memory; an id has 1 to
// 8192 bytes, another one ends the call with a *UserError. It returns how many
// notifications were accepted, once they are durable. An ID outside of its limits
// is an error, and so is a destination that Delete would not take: then none is.
//
// After an error, or a crash, what was accepted stays so: of the users before
// the one with the error up to 2048 may lack theirs, and those after it do. The
// same Deletion may be asked for again, with all users in the order of before or
// another: who was accepted is left out, as far back as the queue remembers what
// was put, and is notified again beyond that. The same goes for a user who comes
// twice among users.
//
// While the queue is full, DeleteUsers waits for room, as long as ctx lasts;
// then the error is both that of ctx and ErrQueueFull. It returns ErrClosed after
// Shutdown, also in the middle. It may be called concurrently.
func (f *Forwarder) DeleteUsers(ctx context.Context, d Deletion, users iter.Seq2[string, error]) (accepted int, err error) {
	if err := f.check(d.Destinations); err != nil {
		return 0, err
	}
	if d.ID == "" || len(d.ID) > maxID {
		return 0, fmt.Errorf("webhook: deletion ID of %d bytes, 1 to %d are allowed", len(d.ID), maxID)
	}
	// A destination that serves several sources is told once for each.
	nth, times := make([]uint64, len(d.Destinations)), make(map[string]uint64)
	for i, destination := range d.Destinations {
		nth[i] = times[destination]
		times[destination]++
	}
	trace := f.trace(ctx)
	room := backpressure{f: f, limit: syncChunk}
	ps := make([]Put, 0, syncChunk)
	space := new(putSpace)
	size := 0
	// flush puts what there is, in one commit unless the queue is full.
	flush := func() error {
		for rest := ps; len(rest) > 0; {
			n := 0
			err := room.wait(ctx, func(limit int) error {
				n = min(limit, len(rest))
				stored, err := f.put(ctx, rest[:n], space)
				accepted += stored
				return err
			})
			if err != nil {
				return err
			}
			rest = rest[n:]
		}
		clear(ps) // neither the store nor the observer keeps any of it
		ps, size = ps[:0], 0
		return nil
	}
	err = eachUser(users, event.MaxUserID, func(user string) error {
		now := f.now()
		e, err := event.Delete(user, now)
		if err != nil {
			return err
		}
		first := d.noticeID(user, 0)
		for i, destination := range d.Destinations {
			if e.ID = first; nth[i] > 0 {
				e.ID = d.noticeID(user, nth[i])
			}
			ps = append(ps, Put{Delivery: deliveryOf(&e, destination, deliveryID(&e), now.UTC(), trace)})
			if size += len(e.Body); len(ps) == syncChunk || size >= maxChunkBytes {
				if err := flush(); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err == nil {
		err = flush()
	}
	return accepted, err
}

// noticeID returns the id of a destination's notification about a user, for the nth
// of its sources. It is the same each time the request is made, so that the queue
// recognises it, and does not reveal the user's id.
func (d *Deletion) noticeID(user string, nth uint64) string {
	b := make([]byte, 0, 64+len(d.ID)+len(user))
	b = append(b, "deletion"...)
	b = binary.AppendUvarint(b, nth)
	b = binary.AppendUvarint(b, uint64(len(d.ID)))
	b = append(b, d.ID...)
	b = append(b, user...)
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}
