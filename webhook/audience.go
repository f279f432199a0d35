package webhook

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"
	"unicode"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/event"
)

// ErrSyncing says that a sync of the same audience is in progress.
var ErrSyncing = errors.New("webhook: a sync of this audience is in progress")

// An Audience is a set of users that a destination is told of: by an identify
// for each user who joins or leaves, with a trait that is true or false. Who
// is in it is kept in the queue, so a restart sends nobody again.
type Audience struct {
	f           *Forwarder
	roster      Roster
	destination string
	trait       string
	name        string // as the caller has it
}

// A SyncResult counts the members of a sync.
type SyncResult struct {
	// Joined counts the users who were sent with true.
	Joined int
	// Left counts those who were sent with false.
	Left int
}

// Audience returns the audience with a name at a destination. Names with the
// same TraitName are the same audience. The audience is created by its first
// Sync. It returns ErrUnsupported if the queue is no Roster,
// ErrUnknownDestination for what Forward would not take, and an error for a name
// whose TraitName is empty or has more than 255 bytes, and for a destination with
// a zero byte in its id.
//
// Its methods may be called concurrently; see Sync.
func (f *Forwarder) Audience(destination, name string) (*Audience, error) {
	roster, ok := f.config.Store.(Roster)
	if !ok {
		return nil, ErrUnsupported
	}
	if err := f.destinations.known(destination); err != nil {
		return nil, err
	}
	if strings.Contains(destination, keySeparator) {
		return nil, fmt.Errorf("webhook: audience of the destination %q, whose id has a zero byte", destination)
	}
	trait := TraitName(name)
	if trait == "" {
		return nil, fmt.Errorf("webhook: audience name %q has no letter or digit", name)
	}
	if len(trait) > maxID {
		return nil, fmt.Errorf("webhook: audience name of %d bytes, the limit is %d", len(trait), maxID)
	}
	return &Audience{f: f, roster: roster, destination: destination, trait: trait, name: name}, nil
}

// Trait is the name of the trait that tells of the membership.
func (a *Audience) Trait() string { return a.trait }

// keySeparator separates the destination, the trait and the name in keys of the
// roster. Neither destinations nor traits contain it.
const keySeparator = "\x00"

// key names the audience in the roster.
func (a *Audience) key() string { return a.destination + keySeparator + a.trait }

// begin begins a generation. The trait does not tell the name that the caller
// gave the audience, so that is kept when the audience is made: in the key of a
// second audience without members, because a roster can keep nothing else. If
// that fails, the trait stands for the name.
func (a *Audience) begin(ctx context.Context) (generation uint64, err error) {
	generation, err = a.roster.Begin(ctx, a.key())
	if err == nil && generation == 1 && a.name != a.trait && len(a.name) <= maxID {
		_, err = a.roster.Begin(ctx, a.key()+keySeparator+a.name)
	}
	return generation, err
}

// Sync makes members the members of the audience, and accepts an identify for
// every user who was not one before, and then for every one who is one no
// more. It returns once they are durable, like Forward. A member is a user id of
// 1 to 255 bytes, another one ends the Sync with a *UserError.
//
// Members may come in any order and more than once, and are not kept in memory.
// In the order of their bytes (sort -u with LC_ALL=C) a store in a file is several
// times as fast, because neighbours are in the same page; BenchmarkAudience of this
// package compares the two.
//
// Nobody is told to have left before members has come to its end. An error that
// it yields ends the Sync, a panic passes through; the end of ctx does the same
// wherever it is noticed. A list that is cut short has to say so by an error: a
// member that it lacks has left.
//
// After an error, or a crash, what was accepted stays so, and SyncResult counts
// it. Of the members before the one with the error up to 2047 have not been
// accepted, of those after it none. Sync again, with all members, goes on: it
// announces nobody who has been announced, and misses nobody.
//
// While the queue is full, Sync waits for room, as long as ctx lasts; then the
// error is both that of ctx and ErrQueueFull. It returns ErrClosed after
// Shutdown, also in the middle.
//
// Different audiences may be synced concurrently. Of one audience at most one
// Sync runs at a time, the others return ErrSyncing at once; forwarders that
// share a queue have to see to that themselves.
//
// The announcements of one user may arrive in any order, like all deliveries:
// the one with the later timestamp counts.
func (a *Audience) Sync(ctx context.Context, members iter.Seq2[string, error]) (SyncResult, error) {
	var res SyncResult
	if a.f.open.Err() != nil {
		return res, ErrClosed
	}
	if _, busy := a.f.syncing.LoadOrStore(a.key(), true); busy {
		return res, ErrSyncing
	}
	defer a.f.syncing.Delete(a.key())

	generation, err := a.begin(ctx)
	if err != nil {
		return res, err
	}
	trace := a.f.trace(ctx)
	room := backpressure{f: a.f, limit: syncChunk}
	chunk := make([]string, 0, syncChunk)
	flush := func() error {
		for rest := chunk; len(rest) > 0; {
			n := 0
			err := room.wait(ctx, func(limit int) error {
				n = min(limit, len(rest))
				joined, err := a.roster.Join(ctx, a.key(), generation, rest[:n], a.announce(true, trace))
				res.Joined += joined
				a.sent(joined)
				return err
			})
			if err != nil {
				return err
			}
			rest = rest[n:]
		}
		chunk = chunk[:0]
		return nil
	}
	err = eachUser(members, maxID, func(user string) error {
		if chunk = append(chunk, user); len(chunk) == syncChunk {
			return flush()
		}
		return nil
	})
	if err == nil {
		err = flush()
	}
	if err != nil {
		return res, err
	}
	for last := ""; ; {
		err := room.wait(ctx, func(limit int) error {
			next, left, err := a.roster.Leave(ctx, a.key(), generation, last, limit, a.announce(false, trace))
			res.Left += left
			a.sent(left)
			if err == nil {
				last = next
			}
			return err
		})
		if err != nil || last == "" {
			return res, err
		}
	}
}

// sent counts the identifies that the roster has put, and has them delivered.
func (a *Audience) sent(n int) {
	if n > 0 {
		a.f.count.accepted.Add(int64(n))
		if a.f.observed != nil {
			a.f.observed.accepted(Accepted{Stored: n})
		}
	}
}

// announce returns what makes the identify of a user.
func (a *Audience) announce(member bool, trace event.Trace) func(user string) ([]Delivery, error) {
	now := time.Now().UTC()
	encoder, err := event.NewEncoder(event.Envelope{ReceivedAt: now})
	return func(user string) ([]Delivery, error) {
		if err != nil {
			return nil, err
		}
		e, err := encoder.Encode(&analytics.Identify{
			UserId: user,
			Traits: map[string]any{a.trait: member},
		})
		if err != nil {
			return nil, err
		}
		return []Delivery{deliveryOf(&e, a.destination, deliveryID(&e), now, trace)}, nil
	}
}

// Members yields the members, in the order of their bytes. An error ends it.
func (a *Audience) Members(ctx context.Context) iter.Seq2[string, error] {
	return a.roster.Members(ctx, a.key(), "")
}

// Diff returns who would join and who would leave if members were synced, in
// no order. It holds them in memory, and sends nothing. Of a list that Sync would
// not take it returns the error.
func (a *Audience) Diff(ctx context.Context, members iter.Seq2[string, error]) (joining, leaving []string, err error) {
	want := make(map[string]bool) // false: not known to be a member yet
	err = eachUser(members, maxID, func(user string) error {
		want[user] = false
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	for user, err := range a.Members(ctx) {
		if err != nil {
			return nil, nil, err
		}
		if _, ok := want[user]; ok {
			want[user] = true
		} else {
			leaving = append(leaving, user)
		}
	}
	for user, member := range want {
		if !member {
			joining = append(joining, user)
		}
	}
	return joining, leaving, nil
}

// TraitName returns the name of an audience in snake case: the letters and
// digits of any script, in lower case, with one "_" for each run of anything
// else and each change from lower to upper case between them.
// "VIP Users 2024" gives "vip_users_2024".
func TraitName(name string) string {
	var b strings.Builder
	gap, lower := false, false
	for _, r := range name {
		// A mark belongs to the letter before it, as vowel signs do.
		if !unicode.IsLetter(r) && !unicode.IsDigit(r) && (b.Len() == 0 || gap || !unicode.IsMark(r)) {
			gap, lower = true, false
			continue
		}
		if (gap || lower && unicode.IsUpper(r)) && b.Len() > 0 {
			b.WriteByte('_')
		}
		gap = false
		if !unicode.IsMark(r) {
			lower = unicode.IsLower(r)
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}
