package event

import (
	"bytes"
	"fmt"
	"time"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/integrations"
	"github.com/hookferry/analytics/internal/esjson"
	"github.com/hookferry/analytics/internal/isotime"
)

// append makes the event of a call that c.read has parsed, and appends its body to dst, in the
// canonical form of esjson.
func (e *Encoder) append(dst []byte, c *fields) ([]byte, Event, error) {
	off, err := c.off(e.integrations)
	if err != nil {
		return dst, Event{}, err
	}
	received := e.env.ReceivedAt
	if received.IsZero() {
		received = time.Now()
	}
	corrected, original, sent, err := c.times(received, e.env.SentAt)
	if err != nil {
		return dst, Event{}, err
	}
	id, user, name, err := c.labels()
	if err != nil {
		return dst, Event{}, err
	}
	event := Event{ID: id, Source: label(e.env.Source), User: user, Name: name, Type: c.kind, Received: received, Off: off}
	if off {
		return dst, event, nil
	}

	w := writer{b: dst}
	w.text(`{"version":1,"type":"`)
	w.text(c.kind)
	w.text(`"`)
	if c.kind != "alias" {
		w.member(`,"userId":`, c.v[userID], `null`)
	}
	switch c.kind {
	case "page":
		w.member(`,"properties":`, c.v[properties], `{}`)
		w.member(`,"name":`, c.v[pageName], ``)
		w.member(`,"category":`, c.v[category], ``)
	case "screen":
		w.member(`,"name":`, c.v[pageName], ``)
		w.context(e, c.v[callContext])
		w.member(`,"category":`, c.v[category], ``)
		w.member(`,"properties":`, c.v[properties], ``)
	case "identify":
		w.member(`,"traits":`, c.v[traits], `{}`)
	case "track":
		w.member(`,"event":`, c.v[eventName], ``)
		w.member(`,"properties":`, c.v[properties], `{}`)
	case "group":
		w.member(`,"groupId":`, c.v[groupID], ``)
		w.member(`,"traits":`, c.v[traits], `{}`)
	case "alias":
		w.member(`,"Previous ID":`, c.v[previousID], ``)
		w.member(`,"User ID":`, c.v[userID], ``)
	}
	w.b = appendTimeMember(w.b, `,"timestamp":"`, corrected)
	w.member(`,"messageId":`, c.v[messageID], ``)
	w.member(`,"anonymousId":`, c.v[anonymousID], ``)
	if c.kind != "screen" {
		w.context(e, c.v[callContext])
	}
	if !original.IsZero() {
		w.b = appendTimeMember(w.b, `,"originalTimestamp":"`, original)
	}
	if e.end != nil && c.v[sentAt] == nil {
		w.b = append(w.b, e.end...)
	} else {
		w.b = appendEnd(w.b, received, sent)
	}
	if w.err != nil {
		return dst, Event{}, w.err
	}
	event.Body = w.b[len(dst):len(w.b):len(w.b)]
	return w.b, event, nil
}

// labels returns the ID, the User and the Name of the event, in one allocation.
func (c *fields) labels() (id, user, name string, err error) {
	buf := buffers.Get().(*[]byte)
	defer recycle(buf)
	b, err := c.appendID((*buf)[:0])
	if err != nil {
		return
	}
	idEnd := len(b)
	if b, err = appendLabel(b, c.v[userID]); err != nil {
		return
	}
	userEnd := len(b)
	named := c.v[eventName]
	if c.kind != "track" {
		named = c.v[pageName]
	}
	if b, err = appendLabel(b, named); err != nil {
		return
	}
	*buf = b
	all := string(b)
	return all[:idEnd], all[idEnd:userEnd], all[userEnd:], nil
}

// appendEnd appends the end of a body: the receivedAt and, if it is known, the sentAt.
func appendEnd(b []byte, received, sent time.Time) []byte {
	b = appendTimeMember(b, `,"receivedAt":"`, received)
	if !sent.IsZero() {
		b = appendTimeMember(b, `,"sentAt":"`, sent)
	}
	return append(b, '}')
}

// A writer appends the members of a body to b. Callers pass the name of a member with the comma,
// quotes and colon around it, and the value in canonical form.
type writer struct {
	b   []byte
	err error // set if the call's context cannot be encoded
}

func (w *writer) text(s string) { w.b = append(w.b, s...) }

// member appends a member. If the value is nil, member appends missing in its place, or leaves the
// member out if missing is empty.
func (w *writer) member(name string, value []byte, missing string) {
	switch {
	case value != nil:
		w.text(name)
		w.b = append(w.b, value...)
	case missing != "":
		w.text(name)
		w.text(missing)
	}
}

// context appends the member context: the client's IP address if the Envelope or a context allows
// it, the members of the Envelope's context, and the members of own, the call's context.
func (w *writer) context(e *Encoder, own []byte) {
	ip := e.env.IP
	if ip != "" && !e.env.Browser && !direct(e.context, own) {
		ip = ""
	}
	switch {
	case ip == "" && e.context == nil:
		w.member(`,"context":`, own, `{}`)
		return
	case ip == "" && len(own) <= len(`{}`):
		w.member(`,"context":`, e.context, ``)
		return
	}
	buf := buffers.Get().(*[]byte)
	defer recycle(buf)
	// esjson limits the depth of nesting. In an array, the context is nested as deeply as in the
	// body.
	*buf = append(appendMerged(append((*buf)[:0], '['), ip, e.context, own), ']')
	w.text(`,"context"`)
	colon := len(w.b)
	var err error
	if w.b, err = esjson.Append(w.b, *buf); err != nil {
		w.err = malformed(err)
		return
	}
	w.b[colon] = ':'
	w.b = w.b[:len(w.b)-1]
}

// sharedContext returns a copy of a batch's context in canonical form, nil if there is none.
func sharedContext(object []byte) ([]byte, error) {
	given, err := readShared("context", object, func(_, _ []byte) {})
	if !given {
		return nil, err
	}
	buf := buffers.Get().(*[]byte)
	defer recycle(buf)
	*buf = append(append(append((*buf)[:0], '['), object...), ']') // an array, as in writer.context
	form, err := esjson.Append(nil, *buf)
	if err != nil {
		return nil, &CallError{Field: "context", Code: CodeMalformed, Problem: "of the batch: " + err.Error()}
	}
	form = bytes.Clone(form[1 : len(form)-1])
	if len(form) > analytics.MaxCallSize {
		return nil, &CallError{Field: "context", Code: CodeTooLarge, Problem: fmt.Sprintf("of the batch has %d bytes, more than the limit of %d", len(form), analytics.MaxCallSize)}
	}
	return form, nil
}

// sharedSwitches reduces the integrations of a batch to an object with the switches that matter to
// webhooks. It returns nil if the batch has none.
func sharedSwitches(object []byte) ([]byte, error) {
	var all, own []byte
	given, err := readShared("integrations", object, func(key, value []byte) {
		switch string(key) {
		case integrations.All:
			all = value
		case integrations.Webhooks:
			own = value
		}
	})
	if !given {
		return nil, err
	}
	form := fmt.Appendf(nil, `{%q:%t`, integrations.All, string(all) != "false")
	if own != nil {
		form = fmt.Appendf(form, `,%q:%t`, integrations.Webhooks, string(own) != "false")
	}
	return append(form, '}'), nil
}

// readShared calls fn for each member of a field of a batch. It reports whether the field is given:
// present and not null. It returns an error if the field has another value than an object.
func readShared(field string, object []byte, fn func(key, value []byte)) (given bool, err error) {
	if text := bytes.Trim(object, space); len(text) == 0 || string(text) == "null" {
		return false, nil
	}
	err = esjson.Members(object, func(key, value []byte) error {
		fn(key, value)
		return nil
	})
	if err == nil {
		return true, nil
	}
	if err := esjson.Check(object); err != nil {
		return false, &CallError{Field: field, Code: CodeMalformed, Problem: "of the batch: " + err.Error()}
	}
	return false, &CallError{Field: field, Code: CodeWrongType, Problem: "of the batch has to be an object"}
}

// direct reports whether a context has "direct":true. A member of own overrides the member of
// common that has the same name. Both are nil or in canonical form.
func direct(common, own []byte) (is bool) {
	for _, object := range [][]byte{common, own} {
		// Nearly all contexts need no parsing: they contain neither the name "direct" nor a
		// backslash, with which an escaped form of the name would begin.
		if !bytes.Contains(object, []byte("direct")) && bytes.IndexByte(object, '\\') < 0 {
			continue
		}
		_ = esjson.Members(object, func(key, value []byte) error {
			if string(key) == "direct" {
				is = string(value) == "true"
			}
			return nil
		})
	}
	return is
}

// appendMerged appends an object with an ip, if it is not empty, and the members of objects, which
// are nil or in canonical form. A name may occur twice: the parser of the result takes the last
// member with the name.
func appendMerged(b []byte, ip string, objects ...[]byte) []byte {
	b = append(b, '{')
	if ip != "" {
		b = append(b, `"ip":`...)
		b = esjson.AppendString(b, ip)
	}
	for _, object := range objects {
		if len(object) <= len(`{}`) {
			continue
		}
		if b[len(b)-1] != '{' { // no member ends like this
			b = append(b, ',')
		}
		b = append(b, object[1:len(object)-1]...)
	}
	return append(b, '}')
}

// appendTimeMember appends a member whose value is the time t. The argument open is all that comes
// before the time, such as `,"sentAt":"`.
func appendTimeMember(b []byte, open string, t time.Time) []byte {
	b = append(b, open...)
	b = isotime.Append(b, t)
	return append(b, '"')
}
