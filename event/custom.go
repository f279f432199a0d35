package event

import (
	"bytes"
	"fmt"
	"strings"
	"time"

	"github.com/hookferry/analytics/internal/esjson"
	"github.com/hookferry/analytics/internal/uuid"
)

const (
	MaxType = 128       // bytes of the type of an event
	MaxBody = 256 << 10 // bytes of the body of an event
)

// Custom is an event of the program itself, such as "invoice.paid". It is a [Call]. Its body is what
// the Standard Webhooks specification recommends, in the form of all bodies:
//
//	{"type":"invoice.paid","timestamp":"2026-03-01T12:00:00.000Z","data":{"id":"inv-7"}}
type Custom struct {
	// Type has 1 to MaxType of the characters A-Z, a-z, 0-9, ".", "_" and "-". It is none of the types
	// that calls of the tracking API and deletions have.
	Type string
	// Data is any value that encodes to JSON, as encoding/json does it but with times in UTC and
	// milliseconds. The whole body has at most MaxBody bytes.
	Data any
	// ID becomes the webhook-id, or its digest with a Source. A destination gets each ID once. Up to
	// 255 bytes; empty means a random UUID.
	ID   string
	Time time.Time // when it happened; zero means when it is encoded
	User string    // whom it is about, for lists and for EraseUser; up to 255 bytes
	// Key puts the event in an order: a destination gets the events with the same Key one after the
	// other, in the order in which they were stored. Up to 255 bytes; empty means no order.
	//
	// The next event is sent when the one before was delivered, with all its requests ended, or was
	// given up. So an event that fails holds up the later events with its Key, for up to a retry
	// window, and no other events. A destination gets one request at a time for a Key: choose a Key
	// for the things that must be in order, such as the id of an invoice, and not one for a whole
	// customer. An event that a person sends again goes to the end of its key.
	//
	// In a transaction of the caller, the order is that of the commits. On PostgreSQL the keys of
	// one call are locked in one order, so such calls cannot deadlock. Two calls in one transaction
	// can deadlock, as updates of any two rows can. Then the database ends one of the transactions,
	// and the caller may repeat it.
	Key string
}

// AppendJSON implements [Call]. It appends the body.
func (c *Custom) AppendJSON(dst []byte) ([]byte, error) {
	if err := c.check(); err != nil {
		return dst, err
	}
	at := c.Time
	if at.IsZero() {
		at = time.Now()
	}
	b := append(append(append(dst, `{"type":"`...), c.Type...), `","timestamp":`...)
	b = append(appendTime(b, at), `,"data":`...)
	b, err := esjson.AppendMember(b, c.Data, len(dst)+MaxBody-len("}"))
	switch {
	case err == esjson.ErrLong:
		return dst, &CallError{Field: "data", Code: CodeTooLarge, Problem: fmt.Sprintf("makes a body of more than %d bytes", MaxBody)}
	case err != nil:
		return dst, &CallError{Field: "data", Code: CodeMalformed, Problem: "does not encode to JSON: " + err.Error()}
	}
	return append(b, '}'), nil
}

// check returns an error for the first field that is not within its limits, apart from Data.
func (c *Custom) check() error {
	if c == nil {
		return &CallError{Code: CodeMalformed, Problem: "no call"}
	}
	if err := CheckType(c.Type); err != nil {
		return err
	}
	if reserved[c.Type] {
		return &CallError{Field: "type", Code: CodeType, Problem: fmt.Sprintf("%q is the type of a tracking call or a deletion; an event of one's own needs another", c.Type)}
	}
	return checkLabels(c.ID, c.User, c.Key)
}

// reserved has the types of the calls of the tracking API, and of deletions.
var reserved = map[string]bool{"identify": true, "track": true, "page": true, "screen": true, "group": true, "alias": true, "delete": true}

// IsTracking reports whether events of this type are calls of the tracking API, or deletions.
func IsTracking(eventType string) bool { return reserved[eventType] }

// CheckType returns a *CallError for a type that does not have 1 to MaxType of the characters A-Z, a-z,
// 0-9, ".", "_" and "-".
func CheckType(t string) error {
	const allowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"
	switch {
	case t == "":
		return &CallError{Field: "type", Code: CodeType, Problem: "is required"}
	case len(t) > MaxType:
		return &CallError{Field: "type", Code: CodeType, Problem: fmt.Sprintf("has %d bytes, more than the limit of %d", len(t), MaxType)}
	case strings.ContainsFunc(t, func(r rune) bool { return !strings.ContainsRune(allowed, r) }):
		return &CallError{Field: "type", Code: CodeType, Problem: fmt.Sprintf("%q has other characters than letters, digits, '.', '_' and '-'", t)}
	}
	return nil
}

func checkLabels(id, user, key string) error {
	for _, f := range [...]struct{ name, text string }{{"id", id}, {"user", user}, {"key", key}} {
		if n := len(f.text); n > maxLabel {
			return &CallError{Field: f.name, Code: CodeTooLarge, Problem: fmt.Sprintf("has %d bytes, more than the limit of %d", n, maxLabel)}
		}
	}
	return nil
}

// event returns the event for a Custom. It appends the body to buf, which it returns.
func (c *Custom) event(env *Envelope, buf []byte) ([]byte, Event, error) {
	b, err := c.AppendJSON(buf)
	if err != nil {
		return buf, Event{}, err
	}
	e := Event{ID: c.ID, Source: env.Source, User: c.User, Key: c.Key, Type: c.Type, Body: bytes.Clone(b[len(buf):]), Received: env.ReceivedAt, made: true}
	if e.ID == "" {
		e.ID = string(uuid.Append(nil))
	}
	if e.Received.IsZero() {
		e.Received = time.Now()
	}
	return b, e, nil
}

// Raw returns an event with the given body, which it keeps, and a random UUID as its ID. The caller
// may change the ID, and set Source, User and Key. The error is that of Check.
func Raw(eventType string, body []byte) (Event, error) {
	e := Event{ID: string(uuid.Append(nil)), Type: eventType, Body: body, Received: time.Now()}
	if err := e.Check(); err != nil {
		return Event{}, err
	}
	return e, nil
}

// Check returns a *CallError for the first field that is not within its limits: Type, ID, Source,
// User, Name, Key or Body. A Body is one JSON object of up to MaxBody bytes, in the form that
// ECMAScript's JSON.stringify(JSON.parse(body)) gives it. Check returns nil at once for an event that
// an Encoder or Delete has made.
func (e *Event) Check() error {
	if e.made {
		return nil
	}
	if err := CheckType(e.Type); err != nil {
		return err
	}
	if e.ID == "" {
		return &CallError{Field: "id", Code: CodeMissing, Problem: "is required"}
	}
	if err := checkLabels(e.ID, e.User, e.Key); err != nil {
		return err
	}
	for _, f := range [...]struct{ name, text string }{{"source", e.Source}, {"name", e.Name}} {
		if n := len(f.text); n > maxLabel {
			return &CallError{Field: f.name, Code: CodeTooLarge, Problem: fmt.Sprintf("has %d bytes, more than the limit of %d", n, maxLabel)}
		}
	}
	if e.Off {
		return nil
	}
	return checkBody(e.Body)
}

// checkBody returns an error for a body that is too large, no object or not in the form of all bodies.
func checkBody(body []byte) error {
	if len(body) > MaxBody {
		return &CallError{Field: "body", Code: CodeTooLarge, Problem: fmt.Sprintf("has %d bytes, more than the limit of %d", len(body), MaxBody)}
	}
	buf := buffers.Get().(*[]byte)
	defer recycle(buf)
	form, err := esjson.Append((*buf)[:0], body)
	*buf = form[:0]
	switch {
	case err != nil:
		return &CallError{Field: "body", Code: CodeMalformed, Problem: "is not JSON: " + err.Error()}
	case form[0] != '{':
		return &CallError{Field: "body", Code: CodeWrongType, Problem: "has to be an object"}
	case !bytes.Equal(form, body):
		return &CallError{Field: "body", Code: CodeMalformed, Problem: "is not in the form of ECMAScript's JSON.stringify"}
	}
	return nil
}
