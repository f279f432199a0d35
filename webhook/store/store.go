package store

import (
	"context"
	"fmt"
	"iter"
	"time"
)

// A Store keeps deliveries from Put until their outcome, and decides nothing: the scheduler of the
// Forwarder says which of them are fetched, and when. All methods may be called concurrently.
//
// The deliveries of a destination are in two queues: fresh ones, whose Expires is zero, and
// retries. Each is in the order of Due.
//
// Of the deliveries of a destination that have the same Key, only the first one is in a queue, or
// claimed. The others are behind it, in the order of Seq: they are not due, not in Heads, and never
// claimed. When the first one leaves, because it is settled as Done or Bury, discarded or erased,
// the store releases the next: it becomes a fresh delivery that is due now, or at its own Due if
// that is later. A delivery that is released at once after a Bury with ReasonExpired or
// ReasonBacklog has its own Due, even if that has passed. So all deliveries that wait for a failing
// destination lapse together. Retry and Return release nothing. A store need not write a release:
// after it was opened again, the Due of a delivery that was released may be the one with which it
// was put.
//
// A claim is the right to settle a delivery. It begins when Fetch returns the delivery, or Put
// keeps it, and ends when it is settled or the store is closed. Claims do not survive the process.
// On a shared store, the claims of a node that died end when its last heartbeat is too old.
//
// All times are those of Now, kept to the microsecond. A clock that jumps may change which
// deliveries are due, but never which node has claimed them.
//
// Each method returns ErrClosed after Close, and the wrapped cause when the store fails. Callers
// try again, because it may recover. No method keeps its arguments or anything that they refer to.
// A list holds no lock between two yields, so its loop may call the store. An error ends a list.
type Store interface {
	// Put stores all of ps, or stores none and returns an error. It returns once the deliveries would
	// survive the loss of the process. It sets out[i] for each ps[i]; out is as long as ps.
	//
	// Put leaves out a delivery if one with the same Destination and ID was put before, or is earlier
	// in ps, unless its NoDedup is set. Settings of the store bound how many puts it remembers, and
	// for how long. Within these bounds it remembers a put after a restart and after the delivery has
	// been settled.
	//
	// Of deliveries with the same Destination and Key, one that is later in ps has a greater Seq.
	//
	// Where ps[i].Keep is set, the store may claim the delivery for the caller. It may decline, and
	// never claims a delivery that is behind another. After an error nothing is claimed, even if the
	// error came too late and some of ps are stored.
	//
	// ErrQueueFull says that the store is at its bound, ErrTooLarge that ps is more than it can ever
	// store at once. A delivery outside the limits of its fields is an error.
	Put(ctx context.Context, ps []Put, out []Result) error

	// Fetch claims, for each of wants, up to Max deliveries of its queue that are due, the earliest
	// first, and appends them to dst in the order of wants. It stops at maxBytes of bodies, but claims
	// one delivery if any is due. It does not wait for deliveries. It sets Next of each want to the
	// earliest unclaimed Due that is left in the queue, or zero. The caller may keep the deliveries.
	// It must not change their Body, nor the elements of their slices. With an error nothing is
	// claimed, and wants are as they were.
	Fetch(ctx context.Context, wants []Want, maxBytes int64, dst []Delivery) ([]Delivery, error)

	// Settle ends the claims of ss, in their order. There may be any number of them, with bodies of
	// any size. It returns how many it has settled: the first n are durable, and an error is about
	// ss[n] alone. If a claim has ended before, its settlement changes nothing, and is no error. On a
	// full disk Settle may use space that Put may not. It sets Released of each of ss[:n].
	//
	// Settle does not wait for transactions of others. A delivery that it cannot release at once, the
	// store releases within a second after that is possible, and then Heads has news.
	Settle(ctx context.Context, ss []Settlement) (n int, err error)

	// Heads yields, for each destination, when its first fresh delivery and its first retry are due.
	// Claimed deliveries do not count. If all is not set, Heads yields only destinations whose heads
	// have changed since the previous call, not by Put, Fetch and Settle, of which the caller knows,
	// but by another node, a transaction, Hasten, Revive, Discard, Erase, or the end of a node's claims.
	Heads(ctx context.Context, all bool) iter.Seq2[Head, error]

	// Changed returns a channel that has a value when Heads may have news. One value may stand for
	// many changes, or for none.
	Changed() <-chan struct{}
	// Now is the time by the clock of the store.
	Now() time.Time
	// Close waits for calls in progress. All claims end with it. A second Close returns nil.
	Close() error

	Inspector
	DocumentStore
}

// A Put is a delivery to store. Its Due is not zero, which in a Want or a Head means no delivery. If
// others have its Key, its Expires is zero.
type Put struct {
	Delivery
	Keep    bool // asks the store to claim the delivery for the caller
	NoDedup bool // stores the delivery even if it was put before; the store does not remember this put
}

// A Result says what became of a Put.
type Result struct {
	Stored bool   // false if the delivery was left out, because it was put before
	Behind bool   // true if it is stored behind another delivery with its Key
	Claim  uint64 // zero unless the store has kept the delivery for the caller
}

// A Want asks Fetch for deliveries of one queue.
type Want struct {
	Destination string
	Retries     bool      // the retries of the destination, not its fresh deliveries
	Max         int       // at least 1
	Next        time.Time // set by Fetch
}

// A Head says when the first unclaimed deliveries of a destination are due, zero if there are none.
type Head struct {
	Destination  string
	Fresh, Retry time.Time
}

// Earliest returns the earlier of Fresh and Retry. It ignores a zero time, unless both are zero.
func (h Head) Earliest() time.Time {
	if h.Fresh.IsZero() || !h.Retry.IsZero() && h.Retry.Before(h.Fresh) {
		return h.Retry
	}
	return h.Fresh
}

// Verdict says how a claim ends.
type Verdict uint8

const (
	// Done removes the delivery, because it was delivered. A store with a History may keep it there,
	// with its Tries, Closed and Attempts.
	Done Verdict = iota + 1
	// Retry puts it back with its Due, Expires, Tries, Closed and Attempts.
	Retry
	// Bury makes it a dead letter with its Tries, Closed and Attempts, and the Reason.
	Bury
	// Return puts it back as it was. Of the Delivery only Destination and Claim must be set.
	Return
)

// A Settlement ends the claim of one delivery.
type Settlement struct {
	Verdict Verdict
	// Delivery is the claimed one, with changes only in what its Verdict names. Settle does not look at
	// its Body and its Seq.
	Delivery Delivery
	Reason   Reason    // why it is buried
	At       time.Time // when it was delivered or buried
	Released time.Time // set by Settle: when the delivery is due that was behind this one, or zero
}

// Check returns an error if Verdict is unknown. For Retry and Bury it also returns an error if a
// field of the Delivery exceeds its limits.
func (s *Settlement) Check() error {
	switch s.Verdict {
	case Done, Return:
		return nil
	case Retry, Bury:
		return s.Delivery.Check()
	}
	return fmt.Errorf("webhook: settlement with an unknown verdict: %d", s.Verdict)
}

// An Inspector is the part of a Store for people: all deliveries in one list, and what is asked of
// them.
type Inspector interface {
	// List returns a page of the deliveries that q selects, in every state, in the order of Seq, the
	// newest first unless q.Oldest is set. The page begins behind the number after, or with the first
	// delivery if after is 0. It has up to max deliveries. MaxListed and MaxListSize bound what List looks
	// at and returns, so a page may be short or empty though more follow. The next page begins behind the
	// number next; if that is 0, there is none. A delivery that changes its state keeps its place.
	List(ctx context.Context, q Query, after uint64, max int) (page []Record, next uint64, err error)
	// Get returns a delivery, or ErrNoDelivery.
	Get(ctx context.Context, ref Ref) (Record, error)
	// Hasten makes waiting deliveries due now, as Delivery.Hasten does. It leaves alone what does not
	// wait when it is changed: a delivery that was buried since the caller listed it stays a dead letter,
	// so it does not come again behind the next one of its Key. Hasten returns how many it has changed,
	// at least n after an error, and how many it has skipped because they are claimed.
	Hasten(ctx context.Context, refs ...Ref) (n, claimed int, err error)
	// Revive makes dead letters fresh deliveries: Accepted and due now, with a new Seq, no tries and no
	// endpoint closed, and with their Attempts. So each is the last one of its Key; several with one Key
	// follow in the order of refs. That needs space, so Revive may return ErrQueueFull. It leaves alone
	// what is no dead letter. It returns how many it has changed, at least n after an error.
	//
	// For both, an unknown delivery is no error, and what becomes due is news for Heads.
	Revive(ctx context.Context, refs ...Ref) (n int, err error)
	// Discard removes deliveries in any state. It returns how many it has removed, at least n after an
	// error, and how many it has skipped because they are claimed. An unknown one is no error. A waiting
	// one does not become a dead letter.
	Discard(ctx context.Context, refs ...Ref) (n, claimed int, err error)
	// Erase removes the deliveries and dead letters of a user, by their User, in every destination,
	// except claimed deliveries. It returns how many it has removed, and how many it has skipped
	// because they are claimed. An empty user is an error.
	Erase(ctx context.Context, user string) (erased, claimed int, err error)

	// Count returns how much the store holds.
	Count(ctx context.Context) (Counts, error)
	// CountByDestination yields the counts of every destination that has waiting deliveries, or of
	// those in only, which has none twice, if it is not empty: once each, in no order. What it costs for a few does not grow
	// with the number of all. Changes during the loop may be counted or not.
	CountByDestination(ctx context.Context, only ...string) iter.Seq2[DestinationCounts, error]
}

// History is implemented by a Store that can keep deliveries after they were delivered, the latest
// of them within settings of the store for age and size. List, Get and Counts include the kept
// deliveries, and Discard and Erase remove them like dead letters.
type History interface {
	// Keeps says that the settings of the store keep deliveries. A Forwarder then adds the try that
	// succeeded to the Tries and Attempts of each delivery that is Done.
	Keeps() bool
	// Unkept counts the deliveries that this Store value has settled as Done and could not keep, such as
	// one that is too large, and those that it had to remove on a full disk. A history must not hold up
	// Settle. Those removed later, because of age or size, do not count.
	Unkept() int64
}

// Shared is implemented by a Store that several nodes, usually in several processes, have open at
// once. Each node stores a heartbeat at intervals. When its last heartbeat is too old, its claims
// end, and it may no longer settle them.
//
// A node stops fetching and settling before other nodes may judge it dead. It measures the age of
// its last heartbeat by both the wall clock and the monotonic clock, and goes by the larger age.
// Let A be the age at which a heartbeat is too old: a node judges another one dead only if its own
// heartbeats had no gap during the last A.
type Shared interface {
	// Present makes the store call note for each heartbeat, until Close. The result is a text that
	// Nodes shows for this node, and whether the node is alive. A text of more than MaxNote bytes is
	// left out. While the node is not alive, the store sends no heartbeat. A note must not block.
	Present(note func() (note []byte, alive bool))
	// Release lets other nodes fetch the deliveries that the store holds ready for this node, and from
	// then on each delivery whose claim ends. Run calls it before it waits for the last attempts.
	Release(ctx context.Context) error
	// Nodes returns the nodes that are open, in the order in which they were opened; at most 1,000.
	// One that has died is included until its last heartbeat is too old.
	Nodes(ctx context.Context) ([]Node, error)
}

const MaxNote = 4096 // bytes of the Note of a Node

// A Node is one Store value that is open on a shared store.
type Node struct {
	Name string // the name that its process has given it
	Self bool   // marks the node on which Nodes was called
	// Opened is when the node was opened, or started over after other nodes had judged it dead. Seen
	// is the time of its last heartbeat. Both are zero if not known.
	Opened, Seen time.Time
	Note         []byte // see Shared.Present
}

// An Outbox is a Store, such as pgqueue, that can store deliveries in a transaction of the caller.
type Outbox interface {
	// PutTx stores ps in the transaction tx, as Put would: durably if, and only if, tx commits. It
	// keeps none, and sets Stored and Behind of each of out, which is as long as ps. Behind may be true of
	// a delivery that is due once tx has committed. Each store says which types tx may have; others fail.
	PutTx(ctx context.Context, tx any, ps []Put, out []Result) error
	// FirstClaims counts the deliveries of PutTx, on any node, that this node was the first to claim.
	FirstClaims() int64
}

// Maintained is implemented by a Store with maintenance: steps that it runs again and again in the
// background, such as the removal of what nothing needs any more. A step that fails is tried again. A
// store logs a warning of a step that has failed for a minute, as a Upkeep does.
type Maintained interface {
	// Failing returns the steps with such a warning that fail still, by name, and since when.
	Failing() map[string]time.Time
}
