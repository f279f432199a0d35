package store

import (
	"errors"
	"slices"
	"time"

	"github.com/hookferry/analytics/event"
)

// ErrClosed is returned by a Forwarder after Shutdown and by a Store after Close.
var ErrClosed = errors.New("webhook: closed")

// ErrTooLarge is returned by Put if one call has more than the store can ever hold.
var ErrTooLarge = errors.New("webhook: one call has more than the store can ever hold")

// ErrQueueFull is returned by Forward and Put when the store is at its bound. The caller may repeat
// the call, of which nothing is stored.
var ErrQueueFull = errors.New("webhook: queue is full")

// ErrUnsupported says that the store lacks an optional interface, such as History or Outbox.
var ErrUnsupported = errors.New("webhook: the store does not support this")

const (
	MaxID        = 255 // bytes of a destination's id, and of a Delivery's
	MaxEndpoints = 5   // of a destination
	Unlimited    = -1  // switches a bound off, as the value of a setting whose comment names it
)

// A Delivery is one event on its way to one destination.
type Delivery struct {
	Destination string // the id of the destination, in 1 to 255 bytes
	// ID is unique within its destination, and has 1 to 255 bytes. The store deduplicates by it, and
	// requests carry it as webhook-id. For an event without a Source it is the MessageID. Otherwise it
	// is the base64url, without padding, of the first 18 bytes of a SHA-256 of the length of the
	// Source as a uvarint, the Source, and the MessageID.
	ID                             string
	MessageID, Source, User, Event string // ID, Source, User and Name of the event.Event, of up to 255 bytes
	// Tenant owns the destination, "" for a destination of the program itself. Up to 255 bytes.
	Tenant string
	// Key, of up to 255 bytes, orders the deliveries of a destination: of those with the same Key, a
	// later one is behind an earlier one, until that is delivered or given up. "" has no order. See
	// event.Custom and Destination.Order.
	Key  string
	Type string // of the event, such as "track"
	Body []byte // of the request, exactly as it is signed and sent
	// Accepted is when Forward took the event. Due is the time before which no attempt starts. Expires
	// is the end of the retry window, zero before the first attempt.
	Accepted, Due, Expires time.Time
	Tries                  int       // attempts so far; not negative, nor is any number in Attempts
	Closed                 []Closed  // endpoints, up to MaxEndpoints, that get no request for this delivery
	Attempts               []Attempt // the requests, the oldest first; see MaxAttempts
	// Trace is sent with every attempt, unless the endpoint has a static traceparent or tracestate.
	Trace event.Trace
	// Seq is the store's number of the delivery, which no other has. Put gives it a greater one than
	// those of deliveries whose Put returned before, and so does Revive of a dead letter. Otherwise it
	// never changes.
	// Put and Settle ignore it.
	Seq   uint64
	Claim uint64 // the handle on a claimed delivery of the Store value that handed it out; not stored
}

// Closed is an endpoint that gets no request for a delivery, for some time or never again.
type Closed struct {
	Endpoint uint64 // a hash of its URL
	// Until is when the endpoint may get this delivery again, as its Retry-After said. Zero means that
	// the endpoint has refused the delivery for good.
	Until time.Time
}

// Size returns the size of d in bytes, as bounds such as Config.DeadMaxBytes count it: the lengths
// of its body, its ids and names, and the texts of its attempts.
func (d *Delivery) Size() int64 {
	n := len(d.Body) + len(d.ID) + len(d.MessageID) + len(d.Source) + len(d.User) + len(d.Event) + len(d.Tenant) + len(d.Key)
	for i := range d.Attempts {
		a := &d.Attempts[i]
		n += len(a.Endpoint) + len(a.Batch) + len(a.Header) + len(a.Error) + len(a.Answer)
	}
	return int64(n)
}

// Hasten makes d due now, and opens the endpoints that are closed to d only for some time. If d is
// due already, it changes nothing and returns false.
func (d *Delivery) Hasten(now time.Time) bool {
	if !d.Due.After(now) {
		return false
	}
	d.Due = now
	d.Closed = slices.DeleteFunc(slices.Clone(d.Closed), func(c Closed) bool { return !c.Until.IsZero() })
	return true
}

// Counts says how much a store holds.
type Counts struct {
	// Waiting counts the deliveries that are neither done nor buried. Claimed and Behind count those of
	// them that are claimed, or behind another one with their Key.
	Waiting, Claimed, Behind int
	// Dead counts the dead letters. DeadBytes is the sum of their Sizes, -1 if the store does not know
	// it. OldestDead is when the oldest one died, zero if that is not known.
	Dead       int
	DeadBytes  int64
	OldestDead time.Time
	// Delivered counts the deliveries in the History, of which DeliveredBytes is the sum of the Sizes.
	Delivered      int
	DeliveredBytes int64
	Oldest         time.Time // the earliest Due of the deliveries that wait in a queue, or zero
}

// DestinationCounts says how much a store holds for one destination; see Counts. Bytes is about what
// its waiting deliveries take in the store: their bodies, and up to 1 KB more for each. It may leave
// out claimed ones.
type DestinationCounts struct {
	Destination              string
	Waiting, Claimed, Behind int
	Bytes                    int64
	Oldest                   time.Time
}
