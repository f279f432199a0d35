package webhook

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"time"

	"github.com/hookferry/analytics/event"
)

// ErrClosed is returned by a Forwarder after Shutdown and by a Store after
// Close.
var ErrClosed = errors.New("webhook: closed")

// ErrTooLarge is returned by Put for more than the store can ever store at once.
var ErrTooLarge = errors.New("webhook: too much for one call")

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
	// event.Event. At most 255 bytes each.
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
	Trace event.Trace

	// Claim is the store's handle on a claimed delivery, valid for the Store value
	// that handed it out. It is not stored.
	Claim uint64
}

// Closed is an endpoint that is not to be asked.
type Closed struct {
	// Endpoint is a hash of its URL.
	Endpoint uint64
	// Until is when it may be asked again, as its Retry-After said. Zero
	// means never: it refused the delivery for good.
	Until time.Time
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

// Size returns the bytes that d counts for: its body, its ids and names, and the texts of its attempts.
func (d *Delivery) Size() int64 {
	n := len(d.Body) + len(d.ID) + len(d.MessageID) + len(d.Source) + len(d.User) + len(d.Event)
	for i := range d.Attempts {
		a := &d.Attempts[i]
		n += len(a.Endpoint) + len(a.Error) + len(a.Answer)
	}
	return int64(n)
}

// Delivered is a delivery that was delivered and is kept in the History of a store.
type Delivered struct {
	Delivery
	// At is when it was delivered.
	At time.Time
	// Key is the store's name for it: printable, and the same while it is kept.
	Key string
}

// A DeliveredFilter selects what was delivered. The zero value selects all.
type DeliveredFilter struct {
	// Destination, MessageID and User select by equality where they are not empty.
	Destination, MessageID, User string
	// From and To select by At: not before From, and before To. Zero means no bound.
	From, To time.Time
}

// Match reports whether the filter selects d.
func (f DeliveredFilter) Match(d *Delivered) bool {
	return (f.Destination == "" || f.Destination == d.Destination) &&
		(f.MessageID == "" || f.MessageID == d.MessageID) &&
		(f.User == "" || f.User == d.User) &&
		(f.From.IsZero() || !d.At.Before(f.From)) &&
		(f.To.IsZero() || d.At.Before(f.To))
}

// A DeadFilter selects dead letters. The zero value selects all.
type DeadFilter struct {
	// Destination, ID, Type, Reason and User select by equality where they are not
	// empty. ID is that of a delivery or its messageId.
	Destination string
	ID          string
	Type        string
	Reason      Reason
	User        string
	// From and To select by the time of death: not before From, and before
	// To. Zero means no bound.
	From, To time.Time
	// NewestFirst has lists begin with what died last.
	NewestFirst bool
}

// Match reports whether the filter selects d.
func (f DeadFilter) Match(d *DeadLetter) bool {
	return (f.Destination == "" || f.Destination == d.Destination) &&
		(f.ID == "" || f.ID == d.ID || f.ID == d.MessageID) &&
		(f.Type == "" || f.Type == d.Type) &&
		(f.Reason == "" || f.Reason == d.Reason) &&
		(f.User == "" || f.User == d.User) &&
		(f.From.IsZero() || !d.Died.Before(f.From)) &&
		(f.To.IsZero() || d.Died.Before(f.To))
}

// ErrNoDeadLetter says that there is no dead letter with a key: there was none,
// or it was revived or discarded.
var ErrNoDeadLetter = errors.New("webhook: no such dead letter")

// Counts says how much a store holds.
type Counts struct {
	// Waiting counts the deliveries that are stored and neither done nor
	// buried; those that are claimed included.
	Waiting int
	// Claimed counts those of them that are claimed.
	Claimed int
	// Dead counts the dead letters, DeadBytes is the sum of their Sizes, -1 if the store
	// does not know it, and OldestDead when the first of them died, zero if there is none
	// or the store does not know.
	Dead       int
	DeadBytes  int64
	OldestDead time.Time
	// Delivered counts what the History keeps, DeliveredBytes is the sum of their Sizes.
	// Both are zero if the store keeps none.
	Delivered      int
	DeliveredBytes int64
	// Oldest is the earliest Due of what waits and is not claimed, zero if
	// there is none.
	Oldest time.Time
}

// DestinationCounts says how much a store holds for one destination. The
// fields are those of Counts.
type DestinationCounts struct {
	Destination      string
	Waiting, Claimed int
	Oldest           time.Time
}

// deliveryID returns the ID of the event's deliveries; see Delivery.ID.
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

// deliveryOf returns the delivery of an event to a destination. id is the deliveryID.
func deliveryOf(e *event.Event, destination, id string, now time.Time, trace event.Trace) Delivery {
	return Delivery{
		Destination: destination,
		ID:          id,
		MessageID:   e.ID,
		Source:      e.Source,
		User:        e.User,
		Event:       e.Name,
		Type:        e.Type,
		Body:        e.Body,
		Accepted:    e.Received,
		Due:         now,
		Trace:       trace,
	}
}
