package audience

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/event"
)

// ErrSyncing says that a sync of the same audience is in progress.
var ErrSyncing = errors.New("audience: a sync of this audience is in progress")

// ErrSuperseded says that a later sync of the same audience, perhaps on another node, has begun. It
// continues where the earlier one stopped.
var ErrSuperseded = errors.New("audience: a later sync of this audience has begun")

// A ShrinkError says that a Sync was refused because more than half of the members would have left.
// Those who join were announced, and nobody was announced as leaving.
type ShrinkError struct {
	Members int // who were members before
	Leaving int // of them, those whom the list did not have
}

func (e *ShrinkError) Error() string {
	return fmt.Sprintf("audience: %d of %d members would leave, which is more than half; nobody was announced as leaving", e.Leaving, e.Members)
}

// A smaller audience may lose any number of members.
const mayVanish = 20

// A SyncResult counts the changes that a Sync has announced.
type SyncResult struct {
	Joined int // users who were announced with the trait true
	Left   int // users who were announced with the trait false
}

// Sync replaces the members of the audience by the users that members yields. It forwards an
// identify for every user who joins, and then for every user who leaves. It returns when these
// events are durable. A user id that does not have 1 to 255 bytes ends the Sync with a *UserError.
//
// Users may come in any order and more than once. Sync does not keep them in memory. With
// fileroster, Sync is several times as fast if the users are sorted by their bytes, as sort -u with
// LC_ALL=C sorts them: neighbours in the list are then in the same page of the file.
//
// Sync announces the users who leave only after members has yielded its last id. If members yields
// an error, or ctx ends, Sync returns that error. If members cannot yield the complete list, it
// must yield an error: otherwise Sync would announce that the missing users leave. An empty file must
// not announce that all users leave: if more than half of an audience of 20 members or more would
// leave, Sync returns a *ShrinkError, unless AllowShrink was called.
//
// Sync stores a chunk of up to 2048 users in the Roster as in flight, announces it, and only then
// changes the members. After an error or a crash, call Sync again with all members. It announces
// the chunk in flight once more, and continues with the rest. Repeated announcements have the same
// message ids, so receivers can deduplicate. The ids stay out of the dedup window of the store, so
// that even a huge audience takes no room there. A user of the chunk in flight is announced, and
// counted, even if the new list says the opposite, which the same Sync then announces, too.
//
// While the queue is full, Sync waits for room until ctx ends. Then the error wraps that of ctx and
// webhook.ErrQueueFull. After Shutdown of the forwarder it is webhook.ErrClosed.
//
// Different audiences may be synced concurrently. While a Sync runs, a second one of the same
// audience by the same Announcer returns ErrSyncing at once. One on another node takes over: it
// finishes the chunk in flight, and the earlier Sync ends with ErrSuperseded.
//
// The announcements of one user may arrive in any order, like all deliveries. The receiver should
// use the one with the latest timestamp.
func (a *Audience) Sync(ctx context.Context, members iter.Seq2[string, error]) (SyncResult, error) {
	if _, busy := a.announcer.syncing.LoadOrStore(a.id, true); busy {
		return SyncResult{}, ErrSyncing
	}
	defer a.announcer.syncing.Delete(a.id)
	if err := a.announcer.forwarder.ForwardEvents(ctx, []string{a.destination}); err != nil { // only a check
		return SyncResult{}, err
	}
	s := syncer{audience: a}
	err := a.announcer.roster.UpdateAudience(ctx, a.id, func(rec *Record, _ Members) error {
		rec.begin(a.name)
		s.generation, s.inFlight = rec.Generation, rec.InFlight
		return nil
	})
	if err == nil {
		err = s.announce(ctx) // the chunk in flight of an interrupted Sync
	}
	if err == nil {
		err = inChunks(members, MaxUser, 1, func(users []string) error { return s.join(ctx, users) })
	}
	if err == nil && !a.shrink {
		err = s.checkShrink(ctx)
	}
	if err == nil {
		err = s.leave(ctx)
	}
	return s.result, err
}

// AllowShrink returns the same audience. In a Sync of this audience, any number of members may
// leave.
func (a *Audience) AllowShrink() *Audience {
	allowing := *a
	allowing.shrink = true
	return &allowing
}

// A syncer does the work of one Sync, which is one generation of the audience. The users in its
// list get this generation. When the list is complete, the members with an older generation leave.
type syncer struct {
	audience   *Audience
	generation uint64
	inFlight   Chunk // as in the Record
	room       backpressure
	kept       int // members before the Sync who are in the list
	result     SyncResult
}

// begin starts a new generation of the record. It sets the name only for a new audience.
func (r *Record) begin(name string) {
	if r.Generation == 0 {
		r.Name = strings.Clone(name)
	}
	r.Generation++
}

// update changes the audience, unless a later Sync owns it.
func (s *syncer) update(ctx context.Context, f func(*Record, Members) error) error {
	return s.audience.announcer.roster.UpdateAudience(ctx, s.audience.id, func(rec *Record, members Members) error {
		if rec.Generation != s.generation {
			return ErrSuperseded
		}
		return f(rec, members)
	})
}

// join announces those users who are not members yet, and gives the others the new generation.
func (s *syncer) join(ctx context.Context, users []string) error {
	keeping := 0
	return inParts(ctx, &s.room, users, func(part []string) error {
		part = slices.Compact(slices.Sorted(slices.Values(part)))
		return s.put(ctx, false, func(members Members) (joining []string, err error) {
			found, err := members.Get(part)
			var older []string
			for _, m := range found {
				switch m.Generation {
				case s.generation:
				case 0:
					joining = append(joining, strings.Clone(m.User)) // m.User may be a part of a long string
				default:
					older = append(older, m.User)
				}
			}
			keeping = len(older)
			if err == nil && len(older) > 0 {
				err = members.Set(older, s.generation)
			}
			return joining, err
		})
	}, func(int) error {
		s.kept += keeping
		return s.announce(ctx)
	})
}

// checkShrink returns a *ShrinkError if more than half of the members would leave.
func (s *syncer) checkShrink(ctx context.Context) error {
	if s.generation == 1 { // there were no members
		return nil
	}
	leaving := 0
	var next []Member
	for after := ""; ; after = next[len(next)-1].User {
		err := s.update(ctx, func(_ *Record, members Members) (err error) {
			if next, err = members.Next(after, maxChunk); err == nil {
				err = errLooked
			}
			return err
		})
		if !errors.Is(err, errLooked) {
			return err
		}
		for _, m := range next {
			if m.Generation != s.generation {
				leaving++
			}
		}
		if len(next) < maxChunk {
			break
		}
	}
	if leaving > s.kept && leaving+s.kept >= mayVanish {
		return &ShrinkError{Members: leaving + s.kept, Leaving: leaving}
	}
	return nil
}

// errLooked ends an update that changes nothing, so that the Roster stores nothing.
var errLooked = errors.New("audience: only looked")

// leave announces the members who were not in the list, and removes them.
func (s *syncer) leave(ctx context.Context) error {
	for after := ""; ; {
		// If ctx has ended, the list may have stopped early without an error. Then no user may leave.
		if err := ctx.Err(); err != nil {
			return err
		}
		var next []Member
		err := s.put(ctx, true, func(members Members) (leaving []string, err error) {
			next, err = members.Next(after, maxChunk)
			for _, m := range next {
				if m.Generation != s.generation && m.Generation != 0 {
					leaving = append(leaving, m.User)
				}
			}
			return leaving, err
		})
		if err == nil {
			err = s.announce(ctx)
		}
		if err != nil || len(next) < maxChunk {
			return err
		}
		after = next[len(next)-1].User
	}
}

// put stores the users that choose returns as users in flight.
func (s *syncer) put(ctx context.Context, left bool, choose func(Members) (users []string, err error)) error {
	return s.update(ctx, func(rec *Record, members Members) error {
		users, err := choose(members)
		if len(users) > 0 {
			rec.InFlight = Chunk{Generation: s.generation, At: time.Now().UTC().Truncate(time.Millisecond), Left: left, Users: users}
		}
		s.inFlight = rec.InFlight
		return err
	})
}

// announce forwards the announcements for the chunk in flight, and then changes the members.
func (s *syncer) announce(ctx context.Context) error {
	c := &s.inFlight
	what, generation, count := "joined", c.Generation, &s.result.Joined
	if c.Left {
		what, generation, count = "left", 0, &s.result.Left
	}
	var encoder event.Encoder
	events := make([]event.Event, len(c.Users))
	for i, user := range c.Users {
		e, err := encoder.Encode(&analytics.Identify{
			MessageId: messageID(what, c.Generation, s.audience.id, user),
			Timestamp: c.At.Format(time.RFC3339Nano),
			UserId:    user,
			Traits:    map[string]any{s.audience.trait: !c.Left},
		})
		if err != nil {
			return err
		}
		e.NoDedup, e.Unfiltered = true, true
		events[i] = e
	}
	return inParts(ctx, &s.room, events, func(part []event.Event) error {
		return s.audience.announcer.forwarder.ForwardEvents(ctx, []string{s.audience.destination}, part...)
	}, func(n int) error {
		// Store the change even if ctx has ended. Otherwise the next Sync would repeat the announcement.
		storing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		announced, rest := c.Users[:n], c.Users[n:]
		err := s.update(storing, func(rec *Record, members Members) error {
			rec.InFlight.Users = rest
			return members.Set(announced, generation)
		})
		if err == nil {
			c.Users = rest
			*count += n
		}
		return err
	})
}
