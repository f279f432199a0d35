package webhook

import (
	"context"
	"iter"
	"time"
)

// This is the contract of stores that schedule by themselves. FromQueue makes a Store of
// one.

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

// Counter is implemented by a Queue that knows how much it holds.
type Counter interface {
	Count(ctx context.Context) (Counts, error)
}

// DestinationCounter is implemented by a Queue that knows how much it holds for
// each destination without reading all of it.
type DestinationCounter interface {
	// CountByDestination yields the counts of every destination that something
	// waits for, once each, in no order. What happens meanwhile may be in them
	// or not. It holds no lock between two yields. An error ends it.
	CountByDestination(ctx context.Context) iter.Seq2[DestinationCounts, error]
}

// Pauses is implemented by a Queue that keeps which destinations are paused. Then
// a pause holds for all forwarders that share the store, and until Resume,
// whatever is restarted meanwhile.
type Pauses interface {
	// SetPaused notes that a destination is paused, or is not, and returns once
	// that would survive the loss of the process. To pause what is paused does
	// not change since when it is.
	SetPaused(ctx context.Context, destination string, paused bool) error
	// Paused returns the destinations that are paused, and since when.
	Paused(ctx context.Context) (map[string]time.Time, error)
}
