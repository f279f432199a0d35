package webhook

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
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

// A Delivery is one event on its way to one destination.
type Delivery struct {
	Destination string // the id of the destination, in 1 to 255 bytes
	// ID is unique within its destination, and has 1 to 255 bytes. The store deduplicates by it, and
	// requests carry it as webhook-id. For an event without a Source it is the MessageID. Otherwise it
	// is the base64url, without padding, of the first 18 bytes of a SHA-256 of the length of the
	// Source as a uvarint, the Source, and the MessageID.
	ID                             string
	MessageID, Source, User, Event string // ID, Source, User and Name of the event.Event, of up to 255 bytes
	Type                           string // of the event, such as "track"
	Body                           []byte // of the request, exactly as it is signed and sent
	// Accepted is when Forward took the event. Due is the time before which no attempt starts. Expires
	// is the end of the retry window, zero before the first attempt.
	Accepted, Due, Expires time.Time
	Tries                  int       // attempts so far; not negative, nor is any number in Attempts
	Closed                 []Closed  // endpoints, up to MaxEndpoints, that get no request for this delivery
	Attempts               []Attempt // the failed requests, the oldest first; see MaxAttempts
	// Trace is sent with every attempt, unless the endpoint has a static traceparent or tracestate.
	Trace event.Trace
	Claim uint64 // the handle on a claimed delivery of the Store value that handed it out; not stored
}

// Closed is an endpoint that gets no request for a delivery, for some time or never again.
type Closed struct {
	Endpoint uint64 // a hash of its URL
	// Until is when the endpoint may get this delivery again, as its Retry-After said. Zero means that
	// the endpoint has refused the delivery for good.
	Until time.Time
}

// An Ended is a delivery that was delivered, or given up: then it is a dead letter.
type Ended struct {
	// Delivery is as it ended. Attempts and Tries do not count the attempt that succeeded.
	Delivery
	Reason Reason    // why it was given up, "" if it was delivered
	At     time.Time // when it was delivered or given up; for an Observer, when that was stored
	// Key is the store's name for it, empty for an Observer. It is printable, and does not change
	// until a dead letter is revived or discarded.
	Key string
}

// Size returns the size of d in bytes, as bounds such as Config.DeadMaxBytes count it: the lengths
// of its body, its ids and names, and the texts of its attempts.
func (d *Delivery) Size() int64 {
	n := len(d.Body) + len(d.ID) + len(d.MessageID) + len(d.Source) + len(d.User) + len(d.Event)
	for i := range d.Attempts {
		a := &d.Attempts[i]
		n += len(a.Endpoint) + len(a.Error) + len(a.Answer)
	}
	return int64(n)
}

// An EndedFilter selects dead letters, or deliveries of a History. The zero value selects all.
type EndedFilter struct {
	// If one of these fields is not empty, the delivery must have the same value.
	Destination string `json:"destination,omitempty"`
	ID          string `json:"id,omitempty"` // the ID or the MessageID of the delivery
	Type        string `json:"type,omitempty"`
	Reason      Reason `json:"reason,omitempty"`
	User        string `json:"user,omitempty"`
	// From and To bound At: From <= At < To. A bound that is zero does not apply.
	From        time.Time `json:"from,omitzero"`
	To          time.Time `json:"to,omitzero"`
	NewestFirst bool      `json:"newestFirst,omitempty"` // lists begin with the delivery that ended last
}

// Match reports whether the filter selects d.
func (f EndedFilter) Match(d *Ended) bool {
	return matches(f.Destination, d.Destination) && (matches(f.ID, d.ID) || f.ID == d.MessageID) &&
		matches(f.Type, d.Type) && matches(f.User, d.User) && matches(string(f.Reason), string(d.Reason)) &&
		(f.From.IsZero() || !d.At.Before(f.From)) && (f.To.IsZero() || d.At.Before(f.To))
}

// endedBy returns a filter for the deliveries of f that ended before now.
func (f EndedFilter) endedBy(now time.Time) EndedFilter {
	if f.To.IsZero() || f.To.After(now) {
		f.To = now
	}
	return f
}

// matches reports whether a field has the value that a filter asks for, if it asks for one.
func matches(want, field string) bool { return want == "" || want == field }

// ErrNoDeadLetter says that no dead letter has the key. It may have been revived or discarded.
var ErrNoDeadLetter = errors.New("webhook: no such dead letter")

// Counts says how much a store holds.
type Counts struct {
	Waiting, Claimed int // deliveries that are neither done nor buried, and the claimed ones of them
	// Dead counts the dead letters. DeadBytes is the sum of their Sizes, -1 if the store does not know
	// it. OldestDead is when the oldest one died, zero if that is not known.
	Dead       int
	DeadBytes  int64
	OldestDead time.Time
	// Delivered counts the deliveries in the History, of which DeliveredBytes is the sum of the Sizes.
	Delivered      int
	DeliveredBytes int64
	Oldest         time.Time // the earliest Due of the waiting deliveries that are not claimed, or zero
}

// DestinationCounts says how much a store holds for one destination; see Counts.
type DestinationCounts struct {
	Destination      string
	Waiting, Claimed int
	Oldest           time.Time
}

// deliveryID returns the ID that all deliveries of the event have; see Delivery.ID.
func deliveryID(e *event.Event) string {
	if e.Source == "" {
		return e.ID
	}
	var space [binary.MaxVarintLen64 + 2*maxID]byte
	b := binary.AppendUvarint(space[:0], uint64(len(e.Source)))
	b = append(append(b, e.Source...), e.ID...)
	sum := sha256.Sum256(b)
	var id [24]byte
	base64.RawURLEncoding.Encode(id[:], sum[:18])
	return string(id[:])
}
