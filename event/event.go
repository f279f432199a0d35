// Package event makes the webhooks' bodies of calls: of messages of the root package, and of
// the JSON that clients of the HTTP tracking API send.
//
//	var encoder event.Encoder
//	e, err := encoder.Encode(&analytics.Track{UserId: "u1", Event: "Signed Up"})
//
// The collector and the forwarder both use it. A webhook.Forwarder makes events by itself of
// what is given to Forward; ForwardEvents takes those that were made here.
package event

import (
	"bytes"
	"sync"
	"time"

	"github.com/hookferry/analytics"
)

// An Event is a call made ready to be forwarded: the body that is sent to
// every endpoint of every destination it goes to. Nobody changes it once it is
// made, so it may be shared.
type Event struct {
	// ID is the call's messageId. A destination gets it once from each Source. Of
	// one that is longer than 255 bytes, or that has lone surrogates, it is a
	// digest.
	ID string
	// Source is that of the Envelope. Events of different sources may have the same
	// ID, and are different events.
	Source string
	// User is the call's userId, empty if it has none; of an alias it is the new
	// user id.
	User string
	// Name is the event of a track, or the name of a page or a screen.
	//
	// Source, User and Name are at most 255 bytes each. In place of a longer text
	// there is its digest: "sha256:" and the SHA-256 in hexadecimal.
	Name string
	// Type is "identify", "track", "page", "screen", "group", "alias" or
	// "delete".
	Type string
	// Body is the webhook's body, a fixed point of ECMAScript's
	// JSON.stringify(JSON.parse(Body)). It is nil if the event is Off.
	Body []byte
	// Received is when the call came in: its "receivedAt".
	Received time.Time
	// Off says that the call's integrations switch Webhooks off, so the event
	// is not forwarded.
	Off bool
	// NoDedup says that the event is forwarded even if its ID was forwarded before, and that
	// the dedup window does not remember the ID. It is for many events that nobody sends twice.
	NoDedup bool
}

// An Envelope holds what is known about a call beside the call itself. The
// zero Envelope is that of a call which says everything about itself and comes
// in now. NewEncoder keeps nothing of it.
type Envelope struct {
	// Source names the sender where several senders share destinations, and one may
	// not suppress the events of another by taking their messageId first. It is the
	// same after a restart, and no secret: it is stored and shown. Empty means that
	// all calls come from the application itself.
	Source string
	// Type is the type of call where something else than the call tells it,
	// such as the path of a request. Then the call's own type does not count.
	Type string
	// ReceivedAt is when the call came in. Zero means now.
	ReceivedAt time.Time
	// SentAt is when the request was sent, by the sender's clock; zero if that
	// is not known. A sentAt of the call's own goes before.
	SentAt time.Time
	// Context and Integrations are JSON objects, empty or null, that apply to
	// all calls of a batch. They are merged into the call's own: of members
	// with the same name the call's is taken.
	Context, Integrations []byte
	// IP is the address of whoever sent the request. It becomes context.ip of
	// a call that brings none and that comes from a Browser or says
	// "direct":true in its context.
	IP string
	// Browser says that the user's own browser sent the request.
	Browser bool
}

// An Encoder makes the events of calls that have an Envelope in common, as those of one
// request do. What the Envelope holds for all of them is read once. An Encoder may be used
// concurrently. The zero Encoder has an empty Envelope.
type Encoder struct {
	env          Envelope
	context      []byte // that of env in the form that it has in a body; nil if there is none
	integrations []byte // the switches of env that count; nil if there are none
	// end is the end of the bodies of calls that do not say when they were sent; nil if
	// that is another for each.
	end []byte
}

// NewEncoder returns an Encoder for calls with an Envelope, of which it keeps nothing but
// copies.
//
// The error is a *CallError for the field context or integrations of the Envelope: it is no
// JSON object, or the context has more than analytics.MaxCallSize bytes in the form that it has
// in a body.
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
	if !env.ReceivedAt.IsZero() {
		e.end = appendEnd(nil, env.ReceivedAt, env.SentAt.Truncate(time.Millisecond))
	}
	return e, nil
}

// ContextSize returns the size in bytes of the context that the calls have in common: about
// what each of them adds to the memory, and to the time, that its call would take alone.
func (e *Encoder) ContextSize() int { return len(e.context) }

// Encode returns the event of a message. The error is that of Append, or of the message, such
// as an *analytics.FieldError.
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
	// What the text had of white space, escapes and duplicates is not kept.
	event.Body = bytes.Clone(event.Body)
	return event, err
}

// Append makes an event of the JSON of one call, as clients of the HTTP tracking API send it,
// and keeps nothing of call. It appends the body to dst, for callers that keep the bodies of
// many events in one array, and returns the extended slice. The Body of the event is what was
// appended. On error dst is returned as it was.
//
// The error is a *CallError: the JSON is malformed, the call is larger than
// analytics.MaxCallSize, a field that its type requires is missing, or a field
// is of the wrong type. Names of fields are matched exactly; of fields with the
// same name the last one counts, and null counts as missing. An id that is a
// number becomes a string: an integer that of its digits, however many, another
// number that of its form in ECMAScript. A messageId that is missing is made up,
// as a random UUID. Fields that are unknown, or belong to another type of call,
// are left out.
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
// Those in brackets are there if the call has them; a screen's context is not
// there twice. A userId that is not known is null, other objects that are not
// known are {}. Times are in UTC, in milliseconds.
//
// The originalTimestamp is the call's timestamp, or else its
// originalTimestamp, which some clients send in its place; of a call that
// brings both the timestamp counts. The timestamp of the body is
// receivedAt - (sentAt - originalTimestamp), which takes the error of the
// sender's clock out; without a sentAt it is originalTimestamp, and without
// that receivedAt. The zero time of Go, 0001-01-01T00:00:00Z, is no time.
func (e *Encoder) Append(dst, call []byte) ([]byte, Event, error) {
	forms := buffers.Get().(*[]byte)
	defer recycle(forms)
	c := fields{forms: forms}
	if err := c.read(call, e.env.Type); err != nil {
		return dst, Event{}, err
	}
	return e.append(dst, &c)
}

// buffers holds scratch space for calls and bodies on their way, of type
// *[]byte.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// recycle gives scratch space back. What a rare huge call needed is not kept.
func recycle(buf *[]byte) {
	if cap(*buf) <= 64<<10 {
		buffers.Put(buf)
	}
}
