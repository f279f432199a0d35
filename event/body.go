package event

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/integrations"
	"github.com/hookferry/analytics/internal/esjson"
	"github.com/hookferry/analytics/internal/isotime"
)

// append makes the event of a call that c.read has parsed, and appends its body to dst, in the
// canonical form of esjson.
func (e *Encoder) append(dst []byte, c *fields) ([]byte, Event) {
	received := e.env.ReceivedAt
	if received.IsZero() {
		received = time.Now()
	}
	event := Event{Source: label(e.env.Source), Type: c.kind, Received: received, Off: c.off(e.integrations)}
	event.ID, event.User, event.Name = c.labels()
	if event.Off {
		return dst, event
	}
	corrected, original, sent := c.times(received, e.env.SentAt)

	b := append(dst, `{"version":1,"type":"`...)
	b = append(b, c.kind...)
	b = append(b, '"')
	if c.kind != "alias" {
		b = appendMember(b, `,"userId":`, c.v[userID], `null`)
	}
	switch c.kind {
	case "page":
		b = appendMember(b, `,"properties":`, c.v[properties], `{}`)
		b = appendMember(b, `,"name":`, c.v[pageName], ``)
		b = appendMember(b, `,"category":`, c.v[category], ``)
	case "screen":
		b = appendMember(b, `,"name":`, c.v[pageName], ``)
		b = e.appendContext(b, c.v[callContext])
		b = appendMember(b, `,"category":`, c.v[category], ``)
		b = appendMember(b, `,"properties":`, c.v[properties], ``)
	case "identify":
		b = appendMember(b, `,"traits":`, c.v[traits], `{}`)
	case "track":
		b = appendMember(b, `,"event":`, c.v[eventName], ``)
		b = appendMember(b, `,"properties":`, c.v[properties], `{}`)
	case "group":
		b = appendMember(b, `,"groupId":`, c.v[groupID], ``)
		b = appendMember(b, `,"traits":`, c.v[traits], `{}`)
	case "alias":
		b = appendMember(b, `,"Previous ID":`, c.v[previousID], ``)
		b = appendMember(b, `,"User ID":`, c.v[userID], ``)
	}
	b = appendTimeMember(b, `,"timestamp":"`, corrected)
	b = appendMember(b, `,"messageId":`, c.v[messageID], ``)
	b = appendMember(b, `,"anonymousId":`, c.v[anonymousID], ``)
	if c.kind != "screen" {
		b = e.appendContext(b, c.v[callContext])
	}
	if !original.IsZero() {
		b = appendTimeMember(b, `,"originalTimestamp":"`, original)
	}
	b = appendTimeMember(b, `,"receivedAt":"`, received)
	if !sent.IsZero() {
		b = appendTimeMember(b, `,"sentAt":"`, sent)
	}
	b = append(b, '}')
	event.Body = b[len(dst):len(b):len(b)]
	return b, event
}

// labels returns the ID, the User and the Name of the event, in one allocation.
func (c *fields) labels() (id, user, name string) {
	buf := buffers.Get().(*[]byte)
	defer recycle(buf)
	b := appendID((*buf)[:0], c.v[messageID])
	idEnd := len(b)
	b = appendLabel(b, c.v[userID])
	userEnd := len(b)
	if c.kind == "track" {
		b = appendLabel(b, c.v[eventName])
	} else {
		b = appendLabel(b, c.v[pageName])
	}
	*buf = b
	all := string(b)
	return all[:idEnd], all[idEnd:userEnd], all[userEnd:]
}

// appendMember appends a member of a body. The name has the comma, quotes and colon around it, and
// the value is in canonical form. If the value is nil, appendMember appends missing in its place, or
// leaves the member out if missing is empty.
func appendMember(b []byte, name string, value []byte, missing string) []byte {
	switch {
	case value != nil:
		return append(append(b, name...), value...)
	case missing != "":
		return append(append(b, name...), missing...)
	}
	return b
}

// appendContext appends the member context: the client's IP address if the Envelope or a context
// allows it, the members of the Envelope's context, and the members of own, the call's context.
func (e *Encoder) appendContext(b, own []byte) []byte {
	ip := e.env.IP
	if ip != "" && !e.env.Browser && !direct(e.context, own) {
		ip = ""
	}
	switch {
	case ip == "" && e.context == nil:
		return appendMember(b, `,"context":`, own, `{}`)
	case ip == "" && len(own) <= len(`{}`):
		return appendMember(b, `,"context":`, e.context, ``)
	}
	buf := buffers.Get().(*[]byte)
	defer recycle(buf)
	*buf = appendMerged((*buf)[:0], ip, e.context, own)
	b, _ = esjson.Append(append(b, `,"context":`...), *buf) // no error: both contexts were parsed
	return b
}

// sharedContext returns a copy of a batch's context in canonical form, nil if there is none.
func sharedContext(object []byte) ([]byte, error) {
	if given, err := checkShared("context", object); !given {
		return nil, err
	}
	// esjson limits the depth of nesting. In an array, the context is nested as deeply as in a body.
	form, err := esjson.Append(nil, slices.Concat([]byte("["), object, []byte("]")))
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
	if given, err := checkShared("integrations", object); !given {
		return nil, err
	}
	var all, own []byte
	_ = esjson.Members(object, func(key, value []byte) error {
		switch string(key) {
		case integrations.All:
			all = value
		case integrations.Webhooks:
			own = value
		}
		return nil
	})
	form := fmt.Appendf(nil, `{%q:%t`, integrations.All, string(all) != "false")
	if own != nil {
		form = fmt.Appendf(form, `,%q:%t`, integrations.Webhooks, string(own) != "false")
	}
	return append(form, '}'), nil
}

// checkShared reports whether a field of a batch is given: present and not null. It returns an error
// if the field has another value than an object.
func checkShared(field string, object []byte) (given bool, err error) {
	text := bytes.Trim(object, space)
	if len(text) == 0 || string(text) == "null" {
		return false, nil
	}
	if err := esjson.Check(text); err != nil {
		return false, &CallError{Field: field, Code: CodeMalformed, Problem: "of the batch: " + err.Error()}
	}
	if text[0] != '{' {
		return false, &CallError{Field: field, Code: CodeWrongType, Problem: "of the batch has to be an object"}
	}
	return true, nil
}

// direct reports whether a context has "direct":true. A member of own overrides the member of
// common that has the same name. Both are nil or in canonical form, so the name has no escapes.
func direct(common, own []byte) (is bool) {
	for _, object := range [][]byte{common, own} {
		if !bytes.Contains(object, []byte(`"direct"`)) {
			continue // nearly all contexts, which need no parsing
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
