package webhook

import (
	"context"
	"errors"
	"iter"
	"time"
)

// ErrClosed is returned by a Forwarder after Shutdown and by a Queue after
// Close.
var ErrClosed = errors.New("webhook: closed")

// ErrQueueFull is returned by Forward and Put when the store has reached its
// bound. Nothing of the call was stored; the same call may be made again.
var ErrQueueFull = errors.New("webhook: queue is full")

// A Delivery is one event on its way to one destination.
type Delivery struct {
	// Destination is the id of the destination: the delivery's lane. 1 to 255
	// bytes.
	Destination string
	// ID is unique within its destination: the store deduplicates by it, and the
	// header webhook-id has it. It is the MessageID of an event without a Source.
	// With one it is derived from both: the first 18 bytes of the SHA-256 of the
	// length of the Source, as a uvarint, the Source and the MessageID, in base64url
	// without padding. 1 to 255 bytes.
	ID string
	// MessageID, Source, User and Event are the ID, Source, User and Name of the
	// webhook.Event. At most 255 bytes each.
	MessageID, Source, User, Event string
	// Type is the event's type, such as "track".
	Type string
	// Body is the request body, exactly as it is signed and sent.
	Body []byte
	// Accepted is when Forward took the event.
	Accepted time.Time
	// Due is the time before which no attempt starts.
	Due time.Time
	// Expires is the end of the window, set at the first attempt; zero before.
	Expires time.Time
	// Tries counts the attempts so far. Not negative, nor is a number of
	// Attempts.
	Tries int
	// Closed are the endpoints that are not asked now, or not again: at most
	// MaxEndpoints.
	Closed []Closed
	// Attempts are the first and the latest requests made, oldest first; see
	// MaxAttempts.
	Attempts []Attempt
	// Trace is sent with every attempt. It is stored with the delivery and
	// does not change.
	Trace Trace

	// Lease is the store's handle on a leased delivery, valid in the process
	// and for the Queue value that handed it out. It is not stored.
	Lease uint64
}

// Closed is an endpoint that is not to be asked.
type Closed struct {
	// Endpoint is a hash of its URL.
	Endpoint uint64
	// Until is when it may be asked again, as its Retry-After said. Zero
	// means never: it refused the delivery for good.
	Until time.Time
}

// A Queue keeps deliveries from Forward until they are done, and hands each
// of them to one forwarder at a time. Several forwarders, in several processes
// where the store allows it, may share one.
//
// Times are the store's own: a delivery is due, and a lease has expired, by
// the clock of the store. They are kept to the microsecond.
//
// All methods may be called concurrently. Each returns ErrClosed after Close, and
// a wrapped cause when the store fails; a store that failed may recover, so
// callers try again.
type Queue interface {
	// Put stores ds and returns once they would survive the loss of the
	// process: all of them, or none and an error. ErrQueueFull says that the
	// store is at its bound.
	//
	// A delivery whose Destination and ID are those of one put before, or
	// earlier in ds, is left out. How many puts a store remembers, and how
	// long, is bounded, and is a setting of the store; within these bounds it
	// remembers them after a restart and after the delivery has been settled.
	// Put returns how many of ds were stored.
	//
	// A delivery outside the limits of its fields is an error. Put does not
	// keep ds or anything they refer to.
	Put(ctx context.Context, ds ...Delivery) (stored int, err error)

	// Lease appends to dst up to req.Max deliveries that are due, and holds
	// them until req.Until: until then nobody else is handed them.
	//
	// Deliveries of one destination come in the order they are due. Every
	// destination that has due deliveries, and room, gets its turn: a backlog
	// of one, however long, hides no other's.
	//
	// Lease does not wait. It also returns when to call again at the latest:
	// the earliest time at which something that now waits becomes due, or a
	// lease ends; not after now if more is due already; zero if there is none.
	// What waits for a destination that had no room left does not count.
	//
	// A delivery whose lease has expired is due again, as it was. The caller
	// may keep what it was handed; it does not change Body, nor what the
	// slices refer to.
	Lease(ctx context.Context, req LeaseRequest, dst []Delivery) (ds []Delivery, next time.Time, err error)

	// Settle ends leases, or prolongs them, and returns nil once all of that is
	// stored. It takes any number of settlements, of any size. After an error
	// some may be stored, and the leases of the others still hold; the same
	// call may be made again.
	// Settling a lease that no longer holds, because it expired and the
	// delivery was handed out again, or is gone, changes nothing and is no
	// error. A lease that expired but was not handed out again still settles.
	// A Retry or Bury with a field outside its limits is an error, and nothing
	// of the call is stored.
	//
	// Settle does not keep ss or anything they refer to.
	Settle(ctx context.Context, ss ...Settlement) error

	// Close releases the store. It waits for calls in progress. Leases end
	// with it: what was leased is due again when the store is next opened by
	// the same process or another, at the latest when the lease expires. A
	// second Close returns nil.
	Close() error
}

// LeaseRequest says what a Lease asks for.
type LeaseRequest struct {
	// Max bounds the deliveries handed out by the call, over all
	// destinations. At least 1.
	Max int
	// Until is when the lease expires.
	Until time.Time
	// Room returns how many deliveries of a destination may be handed out by
	// the call; 0 leaves it out. It is called from within Lease, on the
	// caller's goroutine, at most once for each destination that has something
	// due. It returns quickly, does not call the store, and takes no lock that
	// is held while the store is called: stores may hold theirs. Nil means no
	// limit.
	Room func(destination string) int
}

// Verdict says how a lease ends.
type Verdict uint8

// The verdicts of a Settlement.
const (
	// Done removes the delivery.
	Done Verdict = iota + 1
	// Retry puts it back with its Due, Expires, Tries, Closed and Attempts.
	Retry
	// Bury makes it a dead letter with its Attempts and the Reason.
	Bury
	// Renew keeps the lease, now until Due.
	Renew
)

// A Settlement ends or prolongs the lease of one delivery.
type Settlement struct {
	// Verdict is what becomes of the delivery.
	Verdict Verdict
	// Delivery is the delivery as it was leased, with the fields changed that
	// the Verdict names.
	Delivery Delivery
	// Reason is why it is buried.
	Reason Reason
	// At is when it is buried.
	At time.Time
}

// A DeadLetter is a delivery that was given up.
type DeadLetter struct {
	Delivery
	// Reason is why it was given up.
	Reason Reason
	// Died is when.
	Died time.Time
	// Key is the store's name for the dead letter: printable, and the same
	// until it is revived or discarded.
	Key string
}

// A DeadFilter selects dead letters. The zero value selects all.
type DeadFilter struct {
	// Destination, Type and Reason select by equality where they are not
	// empty.
	Destination string
	Type        string
	Reason      Reason
	// From and To select by the time of death: not before From, and before
	// To. Zero means no bound.
	From, To time.Time
}

// Match reports whether the filter selects d.
func (f DeadFilter) Match(d *DeadLetter) bool {
	return (f.Destination == "" || f.Destination == d.Destination) &&
		(f.Type == "" || f.Type == d.Type) &&
		(f.Reason == "" || f.Reason == d.Reason) &&
		(f.From.IsZero() || !d.Died.Before(f.From)) &&
		(f.To.IsZero() || d.Died.Before(f.To))
}

// ErrNoDeadLetter says that there is no dead letter with a key: there was none,
// or it was revived or discarded.
var ErrNoDeadLetter = errors.New("webhook: no such dead letter")

// DeadLetters is the part of a store that keeps what was given up. A Queue
// that implements it can be asked for its dead letters through the Forwarder.
type DeadLetters interface {
	// DeadLetter returns the dead letter with this key, or ErrNoDeadLetter,
	// wrapped or not.
	DeadLetter(ctx context.Context, key string) (DeadLetter, error)
	// Dead yields the dead letters that filter selects, in the order they
	// died, starting after the one whose Key is after ("" for the first). It
	// holds no lock between two yields, so the loop may call the store. An
	// error ends it.
	Dead(ctx context.Context, filter DeadFilter, after string) iter.Seq2[DeadLetter, error]
	// Revive makes deliveries of the dead letters with these keys: due now,
	// with the window not begun, no tries counted, no endpoint closed and their
	// Attempts kept. It returns how many there were; a key that is not there is
	// no error.
	Revive(ctx context.Context, keys ...string) (int, error)
	// Discard forgets the dead letters with these keys, and returns how many
	// there were.
	Discard(ctx context.Context, keys ...string) (int, error)
}

// Counts says how much a store holds.
type Counts struct {
	// Waiting counts the deliveries that are stored and neither done nor
	// buried; those that are leased included.
	Waiting int
	// Leased counts those of them that are leased.
	Leased int
	// Dead counts the dead letters.
	Dead int
	// Oldest is the earliest Due of what waits and is not leased, zero if
	// there is none.
	Oldest time.Time
}

// Counter is implemented by a Queue that knows how much it holds.
type Counter interface {
	Count(ctx context.Context) (Counts, error)
}

// Waker is implemented by a Queue that learns of what other processes have put.
type Waker interface {
	// Wake returns a channel that has a value when something may have become
	// due that was not put through this Queue value. There may be one value
	// for many puts, and values for none.
	Wake() <-chan struct{}
}

// DestinationCounts says how much a store holds for one destination. The
// fields are those of Counts.
type DestinationCounts struct {
	Destination     string
	Waiting, Leased int
	Oldest          time.Time
}

// DestinationCounter is implemented by a Queue that knows how much it holds for
// each destination without reading all of it.
type DestinationCounter interface {
	// CountByDestination yields the counts of every destination that something
	// waits for, once each, in no order. What happens meanwhile may be in them
	// or not. It holds no lock between two yields. An error ends it.
	CountByDestination(ctx context.Context) iter.Seq2[DestinationCounts, error]
}

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
