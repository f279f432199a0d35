package audience

import (
	"context"
	"iter"
	"time"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/event"
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

// A SyncResult counts the changes that a Sync has announced.
type SyncResult struct {
	Joined int // users who were announced with the trait true
	Left   int // users who were announced with the trait false
}

// Trait returns the name of the trait that is true for members.
func (a *Audience) Trait() string { return a.trait }

// Sync replaces the members of the audience by the users that the argument members yields. It
// forwards an identify for every user who joins, and then for every user who leaves. It returns
// when these events are durable. A user id that does not have 1 to 255 bytes ends the Sync with a
// *UserError.
//
// Users may come in any order and more than once. Sync does not keep them in memory. With
// filequeue, Sync is several times as fast if the users are sorted by their bytes, as sort -u with
// LC_ALL=C sorts them: users next to each other in the list are then in the same page of the file.
//
// Sync announces the users who leave only after members has yielded its last id. If members yields
// an error, or ctx ends, Sync returns that error. If members cannot yield the complete list, it
// must yield an error: otherwise Sync would announce that the missing users leave.
//
// Sync announces users in chunks of up to 2048. It stores a chunk in the Roster as in flight,
// announces it, and then confirms it in the Roster. After an error or a crash, call Sync again with
// all members. The new Sync announces the chunk in flight once more, and continues with the rest.
// Repeated announcements have the same message ids, so receivers can deduplicate. The ids stay out
// of the dedup window of the store, so that even a huge audience takes no room there. A user of the
// chunk in flight is announced, and counted, even if the new list says the opposite. Then the same
// Sync also announces the opposite.
//
// While the queue is full, Sync waits for room until ctx ends. Then the error wraps the error of
// ctx and webhook.ErrQueueFull. After Shutdown of the forwarder Sync returns webhook.ErrClosed.
//
// Different audiences may be synced concurrently. While a Sync of an audience runs, a second Sync
// of the same audience by the same Announcer returns ErrSyncing at once. A Sync on another node
// takes over: it finishes the chunk in flight of the earlier Sync, and the earlier Sync ends with
// ErrSuperseded.
//
// The announcements of one user may arrive in any order, like all deliveries. The receiver should
// use the announcement with the latest timestamp.
func (a *Audience) Sync(ctx context.Context, members iter.Seq2[string, error]) (res SyncResult, err error) {
	if _, busy := a.announcer.syncing.LoadOrStore(a.id, true); busy {
		return res, ErrSyncing
	}
	defer a.announcer.syncing.Delete(a.id)
	if err := a.announcer.forwarder.Announce(ctx, []string{a.destination}); err != nil { // only a check
		return res, err
	}
	generation, inFlight, err := a.roster.Begin(ctx, a.id, a.name)
	if err != nil {
		return res, err
	}
	room := newBackpressure()
	if err := a.announce(ctx, generation, inFlight, &room, &res); err != nil {
		return res, err
	}
	err = inChunks(members, MaxUser, 1, func(users []string) error {
		for len(users) > 0 {
			var c Chunk
			n, err := room.wait(ctx, len(users), func(n int) (err error) {
				c, err = a.roster.Join(ctx, a.id, generation, users[:n])
				return err
			})
			if err == nil {
				err = a.announce(ctx, generation, c, &room, &res)
			}
			if err != nil {
				return err
			}
			users = users[n:]
		}
		return nil
	})
	for last := ""; err == nil; {
		// If ctx has ended, members may have stopped early without yielding an error. Then
		// the list is not complete, and no user may leave.
		if err = ctx.Err(); err != nil {
			break
		}
		var c Chunk
		if c, last, err = a.roster.Leave(ctx, a.id, generation, last, maxChunk); err == nil {
			err = a.announce(ctx, generation, c, &room, &res)
		}
		if last == "" {
			break
		}
	}
	return res, err
}

// announce forwards the announcements for c, the chunk in flight, and confirms its users.
func (a *Audience) announce(ctx context.Context, generation uint64, c Chunk, room *backpressure, res *SyncResult) error {
	if len(c.Users) == 0 {
		return nil
	}
	encoder, err := event.NewEncoder(event.Envelope{ReceivedAt: time.Now()})
	if err != nil {
		return err
	}
	what := "joined"
	if c.Left {
		what = "left"
	}
	events := make([]event.Event, len(c.Users))
	for i, user := range c.Users {
		events[i], err = encoder.Encode(&analytics.Identify{
			MessageId: messageID(what, c.Generation, a.id, user),
			Timestamp: c.At.Format(time.RFC3339Nano),
			UserId:    user,
			Traits:    map[string]any{a.trait: !c.Left},
		})
		if err != nil {
			return err
		}
		events[i].NoDedup = true
	}
	return a.announcer.announce(ctx, []string{a.destination}, events, room, func(n int) error {
		// Confirm even if ctx has ended. Otherwise the next Sync would repeat the announcement.
		confirming, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		if err := a.roster.Confirm(confirming, a.id, generation, n); err != nil {
			return err
		}
		if c.Left {
			res.Left += n
		} else {
			res.Joined += n
		}
		return nil
	})
}

// Create stores the audience without members, so that Announcer.Audiences yields it. If the
// audience was synced or created before, Create does nothing. It reads the list of all audiences.
func (a *Audience) Create(ctx context.Context) error {
	for known, err := range a.roster.Audiences(ctx) {
		if err != nil {
			return err
		}
		if known.ID == a.id {
			return nil
		}
	}
	if err := a.announcer.forwarder.Announce(ctx, []string{a.destination}); err != nil {
		return err
	}
	_, _, err := a.roster.Begin(ctx, a.id, a.name)
	return err
}

// Members yields the members, in the order of their bytes. An error ends the sequence.
func (a *Audience) Members(ctx context.Context) iter.Seq2[string, error] {
	return a.roster.Members(ctx, a.id, "")
}
