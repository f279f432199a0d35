package event

import (
	"bytes"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/integrations"
	"github.com/hookferry/analytics/internal/esjson"
)

// A Call is what an Encoder makes an event of: an analytics.Message, JSON, or a *Custom.
type Call interface {
	// AppendJSON appends the call to dst as one JSON object. On error it returns dst unchanged.
	AppendJSON(dst []byte) ([]byte, error)
}

var _ Call = analytics.Message(nil)

// JSON is the JSON of one call, as clients of the HTTP tracking API send it.
type JSON []byte

// AppendJSON implements [Call]. It appends the call unchanged, unless Encode would refuse it: then it
// returns that *CallError.
func (j JSON) AppendJSON(dst []byte) ([]byte, error) {
	if _, err := new(Encoder).Encode(j); err != nil {
		return dst, err
	}
	return append(dst, j...), nil
}

// An Envelope holds what applies to all calls of a request. The zero Envelope adds nothing.
type Envelope struct {
	// Source names the sender. Set it if several senders share destinations: otherwise one could
	// suppress events of another by using their messageIds first. The Source must be the same after a
	// restart, and no secret, because it is stored and shown.
	Source string
	// Type is the type of the calls if the request says it, for example by its path. It replaces the
	// member "type" of a call, which is required if Type is empty.
	Type       string
	ReceivedAt time.Time // when the call came in; zero means now
	// SentAt is when the request was sent, by the sender's clock, zero if that is not known. The
	// call's own sentAt takes precedence.
	SentAt time.Time
	// Context and Integrations apply to all calls of a batch. Each is a JSON object, null, [] or empty,
	// and is merged into that of the call, whose members take precedence.
	Context, Integrations []byte
	// IP is the address of the client that sent the request. It becomes the context.ip of a call that
	// has none, if a Browser sent the call or its context has "direct":true.
	IP      string
	Browser bool // the user's own browser sent the request
}

// An Encoder makes events of the calls of one request, and parses their Envelope only once. It may
// be used concurrently. The zero Encoder has an empty Envelope.
type Encoder struct {
	env Envelope // with Context and Integrations in canonical form; nil if there are none
	// Members of Context and Integrations, nil if there are none.
	direct, webhooks, all []byte
}

// NewEncoder returns an Encoder for calls with an Envelope, which it copies. The error is a
// *CallError for the field context or integrations: it is not a JSON object, or the context takes
// more than analytics.MaxCallSize bytes in a body.
func NewEncoder(env Envelope) (*Encoder, error) {
	context, err := shared("context", env.Context)
	if err != nil {
		return nil, err
	}
	if len(context) > analytics.MaxCallSize {
		problem := fmt.Sprintf("of the batch has %d bytes, more than the limit of %d", len(context), analytics.MaxCallSize)
		return nil, &CallError{Field: "context", Code: CodeTooLarge, Problem: problem}
	}
	switches, err := shared("integrations", env.Integrations)
	if err != nil {
		return nil, err
	}
	env.Source, env.Context, env.Integrations = label(env.Source), context, nil
	return &Encoder{
		env:      env,
		direct:   find(context, "direct", nil),
		webhooks: find(switches, integrations.Webhooks, nil),
		all:      find(switches, integrations.All, nil),
	}, nil
}

// ContextSize returns the size in bytes of the Envelope's context, which each body repeats.
func (e *Encoder) ContextSize() int { return len(e.env.Context) }

// Encode returns the event of a call. It returns the error of Append, or of a message, such as an
// *analytics.FieldError.
func (e *Encoder) Encode(c Call) (Event, error) {
	buf := buffers.Get().(*[]byte)
	defer recycle(buf)
	dst := (*buf)[:0]
	if custom, ok := c.(*Custom); ok {
		dst, event, err := custom.event(&e.env, dst)
		*buf = dst
		return event, err
	}
	call, ok := c.(JSON)
	switch {
	case c == nil:
		return Event{}, &CallError{Code: CodeMalformed, Problem: "no call"}
	case !ok:
		var err error
		if dst, err = c.AppendJSON(dst); err != nil {
			return Event{}, err
		}
		call = dst
	}
	dst, event, err := e.Append(dst, call)
	*buf, event.Body = dst, bytes.Clone(event.Body)
	return event, err
}

// Append makes an event of the JSON of one call, as clients of the HTTP tracking API send it, and
// keeps no reference to call. It appends the event's Body to dst and returns the extended slice, so
// that a caller can keep many bodies in one array. On error it returns dst as it was.
//
// The error is a *CallError: the JSON is malformed, the call is larger than analytics.MaxCallSize,
// a field that its type requires is missing, or a field has the wrong type.
//
//   - Names of fields match exactly. Of fields with the same name the last one counts. null counts
//     as missing.
//   - An id that is a number becomes a string. An integer keeps all its digits. Any other number
//     gets the form that ECMAScript gives it.
//   - An empty array counts as an empty object where an object is wanted.
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
// line has it. A missing userId is null, a missing object {}. Times are in UTC and milliseconds.
//
// The originalTimestamp of the body is the call's timestamp or, if there is none, its
// originalTimestamp. The timestamp is receivedAt - (sentAt - originalTimestamp), which removes the
// error of the sender's clock. Without a sentAt it is originalTimestamp, and without that
// receivedAt. The zero time of Go, 0001-01-01T00:00:00Z, counts as missing. So does a time that
// cannot be read, which Event.BadTime tells. A time is in RFC 3339 with Z, an offset or neither, a
// date alone, or a number of seconds or milliseconds since 1970.
func (e *Encoder) Append(dst, call []byte) ([]byte, Event, error) {
	forms := buffers.Get().(*[]byte)
	defer recycle(forms)
	c := fields{forms: forms}
	if err := c.read(call, e.env.Type); err != nil {
		return dst, Event{}, err
	}
	received := e.env.ReceivedAt
	if received.IsZero() {
		received = time.Now()
	}
	event := Event{Source: e.env.Source, Type: c.kind, Received: received, BadTime: c.badTime, Off: e.off(c.v[switches]), made: true}
	event.ID, event.User, event.Name = c.labels()
	if event.Off {
		return dst, event, nil
	}
	c.setTimes(received, e.env.SentAt)
	e.setContext(&c)
	b := c.appendBody(dst)
	event.Body = b[len(dst):len(b):len(b)]
	return b, event, nil
}

// off reports whether the integrations of the call, or else of the Envelope, switch webhooks off.
func (e *Encoder) off(own []byte) bool {
	webhooks, all := find(own, integrations.Webhooks, e.webhooks), find(own, integrations.All, e.all)
	if webhooks == nil && all == nil {
		return false
	}
	switches := make(map[string]any, 2) // stays on the stack
	if webhooks != nil {
		switches[integrations.Webhooks] = string(webhooks) != "false"
	}
	if all != nil {
		switches[integrations.All] = string(all) != "false"
	}
	return !integrations.Enabled(switches, integrations.Webhooks)
}

// find returns the value that an object has under a name, or missing if there is none. The object
// is in canonical form, or nil.
func find(object []byte, name string, missing []byte) []byte {
	if bytes.Contains(object, []byte(name)) { // nearly no object has it, and the others need no parsing
		_ = esjson.Members(object, func(key, value []byte) error {
			if string(key) == name {
				missing = value
			}
			return nil
		})
	}
	return missing
}

// shared returns a field of the Envelope in canonical form, nil if the field is missing or null.
func shared(field string, object []byte) ([]byte, error) {
	object = bytes.Trim(object, " \t\r\n")
	if len(object) == 0 || string(object) == "null" {
		return nil, nil
	}
	form, err := esjson.Append(nil, object)
	if err == nil { // in an array, the object is nested as deeply as in a body
		err = esjson.Check(slices.Concat([]byte("["), form, []byte("]")))
	}
	switch {
	case err != nil:
		return nil, &CallError{Field: field, Code: CodeMalformed, Problem: "of the batch: " + err.Error()}
	case string(form) == "[]": // PHP writes an empty map so
		return nil, nil
	case form[0] != '{':
		return nil, &CallError{Field: field, Code: CodeWrongType, Problem: "of the batch has to be an object"}
	}
	return bytes.Clone(form), nil // without the white space and the duplicates of object
}

// buffers is a pool of *[]byte for calls and bodies.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// recycle puts scratch space back into the pool, unless a rare huge call has made it grow.
func recycle(buf *[]byte) {
	if cap(*buf) <= 64<<10 {
		buffers.Put(buf)
	}
}
