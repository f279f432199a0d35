// Package event turns calls into events, whose bodies are sent as webhooks. A call is a
// message of the root package, or the JSON that clients of the HTTP tracking API send.
//
//	var encoder event.Encoder
//	e, err := encoder.Encode(&analytics.Track{UserId: "u1", Event: "Signed Up"})
//	e, err = encoder.Encode(event.JSON(`{"type":"track","userId":"u1","event":"Signed Up"}`))
//
// webhook.Forwarder.Forward takes messages and makes the events itself. ForwardEvents takes events
// that the caller has made with this package. The error for a wrong call is a *[CallError].
package event

import (
	"bytes"
	"sync"
	"time"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/internal/esjson"
	"github.com/hookferry/analytics/internal/uuid"
)

// An Event is a call that is ready to be forwarded. All endpoints of all destinations get
// the same body. Events do not change, so they may be shared.
//
// ID, Source, User and Name have at most 255 bytes each. A digest replaces a longer text:
// "sha256:" and its SHA-256 in hexadecimal.
type Event struct {
	// ID is the call's messageId, or a digest of it if it has lone surrogates. A destination gets
	// each ID of a Source once.
	ID string
	// Source is the Source of the Envelope. Events of different sources may have the same ID, and
	// are different events all the same.
	Source string
	// User is the call's userId, empty if it has none. For an alias it is the new user id.
	User string
	// Name is the event of a track, or the name of a page or a screen.
	Name string
	// Type is "identify", "track", "page", "screen", "group", "alias" or "delete".
	Type string
	// Body is the webhook's body, a fixed point of ECMAScript's
	// JSON.stringify(JSON.parse(Body)). It is nil if the event is Off.
	Body []byte
	// Received is when the call came in. The body has it as "receivedAt".
	Received time.Time
	// Off says that the call's integrations switch Webhooks off, so the event is not forwarded.
	Off bool
	// NoDedup keeps the ID out of the dedup window: the event is forwarded even if its ID was
	// forwarded before, and the store does not remember the ID. It is for large numbers of events
	// that are never sent twice.
	NoDedup bool
}

// An Envelope holds the properties of a request that apply to all of its calls. The zero Envelope
// adds no properties to a call, and says that the call comes in now.
type Envelope struct {
	// Source names the sender. Set it if several senders share destinations: otherwise a sender
	// could suppress events of another sender by using their messageIds first. The Source must be
	// the same after a restart, and no secret, because it is stored and shown.
	Source string
	// Type is the type of the calls if the request says it, for example by its path. It replaces
	// the member "type" of a call. If Type is empty, each call must have the member.
	Type string
	// ReceivedAt is when the call came in. Zero means now.
	ReceivedAt time.Time
	// SentAt is when the request was sent, by the sender's clock. It is zero if that is not known.
	// The call's own sentAt takes precedence.
	SentAt time.Time
	// Context and Integrations apply to all calls of a batch. Each is a JSON object, null or empty.
	// They are merged into the context and the integrations of the call. If both have a member of
	// the same name, the call's member counts.
	Context, Integrations []byte
	// IP is the address of the client that sent the request. It becomes the context.ip of a call
	// that has none, if a Browser sent the call or the call's context has "direct":true.
	IP string
	// Browser says that the user's own browser sent the request.
	Browser bool
}

// An Encoder makes events of the calls of one request, which share an Envelope. It parses the
// Envelope only once. An Encoder may be used concurrently. The zero Encoder has an empty Envelope.
type Encoder struct {
	env          Envelope
	context      []byte // context of env, in canonical form; nil if there is none
	integrations []byte // switches of env that matter to webhooks; nil if there are none
}

// NewEncoder returns an Encoder for calls with an Envelope, which it copies.
//
// The error is a *CallError for the field context or integrations of the Envelope: the field is not
// a JSON object, or the context takes more than analytics.MaxCallSize bytes in a body.
func NewEncoder(env Envelope) (*Encoder, error) {
	e := &Encoder{env: env}
	var err error
	if e.context, err = sharedContext(env.Context); err != nil {
		return nil, err
	}
	if e.integrations, err = sharedSwitches(env.Integrations); err != nil {
		return nil, err
	}
	e.env.Context, e.env.Integrations = nil, nil
	return e, nil
}

// ContextSize returns the size in bytes of the Envelope's context, which each body repeats.
func (e *Encoder) ContextSize() int { return len(e.context) }

// Encode returns the event of a message. It returns the error of Append, or the error of the
// message, such as an *analytics.FieldError.
func (e *Encoder) Encode(m analytics.Message) (Event, error) {
	body := buffers.Get().(*[]byte)
	defer recycle(body)
	var call []byte
	switch m := m.(type) {
	case nil:
		return Event{}, &CallError{Code: CodeMalformed, Problem: "no message"}
	case JSON:
		call = m
	default:
		buf := buffers.Get().(*[]byte)
		defer recycle(buf)
		var err error
		if *buf, err = m.AppendJSON((*buf)[:0]); err != nil {
			return Event{}, err
		}
		call = *buf
	}
	var event Event
	var err error
	*body, event, err = e.Append((*body)[:0], call)
	event.Body = bytes.Clone(event.Body)
	return event, err
}

// Append makes an event of the JSON of one call, as clients of the HTTP tracking API send it,
// and keeps no reference to call. It appends the body to dst and returns the extended slice,
// so that a caller can keep the bodies of many events in one array. The Body of the event is
// the appended part. On error Append returns dst as it was.
//
// The error is a *CallError: the JSON is malformed, the call is larger than analytics.MaxCallSize,
// a field that its type requires is missing, or a field has the wrong type.
//
//   - Names of fields match exactly. Of fields with the same name the last one counts. null counts
//     as missing.
//   - An id that is a number becomes a string. An integer keeps all its digits. Any other
//     number gets the form that ECMAScript gives it.
//   - A missing messageId becomes a random UUID.
//   - Fields that are unknown, or belong to another type of call, are left out.
//
// The members of the body are, in this order:
//
//	page      version type userId  properties [name] [category]                timestamp ...
//	screen    version type userId  [name] context [category] [properties]      timestamp ...
//	identify  version type userId  traits                                      timestamp ...
//	track     version type userId  event properties                            timestamp ...
//	group     version type userId  groupId traits                              timestamp ...
//	alias     version type         "Previous ID" "User ID"                     timestamp ...
//
//	... messageId [anonymousId] context [originalTimestamp] receivedAt [sentAt]
//
// Members in brackets are present if the call has them. The context of a screen is only where its
// line has it. A missing userId is null, and a missing object is {}. Times are in UTC, in
// milliseconds.
//
// The originalTimestamp of the body is the call's timestamp or, if there is none, its
// originalTimestamp. The timestamp of the body is receivedAt - (sentAt - originalTimestamp), which
// removes the error of the sender's clock. Without a sentAt, the timestamp is originalTimestamp.
// Without an originalTimestamp, it is receivedAt. The zero time of Go, 0001-01-01T00:00:00Z, counts
// as missing.
func (e *Encoder) Append(dst, call []byte) ([]byte, Event, error) {
	forms := buffers.Get().(*[]byte)
	defer recycle(forms)
	c := fields{forms: forms}
	if err := c.read(call, e.env.Type); err != nil {
		return dst, Event{}, err
	}
	dst, event := e.append(dst, &c)
	return dst, event, nil
}

// Delete returns the event that asks a destination to delete a user. The argument at is the time of
// the request. The body has type, userId and timestamp. The error is a *CallError for a user id
// that does not have 1 to MaxUserID bytes.
func Delete(userID string, at time.Time) (Event, error) {
	if userID == "" {
		return Event{}, &CallError{Field: "userId", Code: CodeMissing, Problem: "is required"}
	}
	if len(userID) > MaxUserID {
		return Event{}, &CallError{Field: "userId", Code: CodeTooLarge, Problem: "has more than 8192 bytes"}
	}
	var id [36]byte
	b := make([]byte, 0, len(`{"type":"delete","userId":"","timestamp":"2006-01-02T15:04:05.000Z"}`)+len(userID))
	b = append(b, `{"type":"delete","userId":`...)
	b = esjson.AppendString(b, userID)
	b = appendTimeMember(b, `,"timestamp":"`, at)
	return Event{ID: string(uuid.Append(id[:0])), User: label(userID), Type: "delete", Body: append(b, '}'), Received: at}, nil
}

// MaxUserID bounds the user id of a deletion, in bytes.
const MaxUserID = 8 << 10

// buffers is a pool of scratch space for calls and bodies, of type *[]byte.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// recycle puts scratch space back into the pool, unless a rare huge call has made it grow.
func recycle(buf *[]byte) {
	if cap(*buf) <= 64<<10 {
		buffers.Put(buf)
	}
}
