package event

import (
	"time"

	"github.com/hookferry/analytics/internal/esjson"
	"github.com/hookferry/analytics/internal/isotime"
)

// layout has the members that follow the type in a body, in their order.
var layout = [...]struct {
	of      kindSet // the types of call whose bodies have the member at this place
	key     string
	member  member
	missing string // stands for a value that is missing; if it is empty, the member is left out
}{
	{all &^ alias, "userId", userID, "null"},
	{track, "event", eventName, ""},
	{page | track, "properties", properties, "{}"},
	{page | screen, "name", pageName, ""},
	{screen, "context", callContext, "{}"},
	{page | screen, "category", category, ""},
	{screen, "properties", properties, ""},
	{group, "groupId", groupID, ""},
	{identify | group, "traits", traits, "{}"},
	{alias, "Previous ID", previousID, ""},
	{alias, "User ID", userID, ""},
	{all, "timestamp", timestamp, ""},
	{all, "messageId", messageID, ""},
	{all, "anonymousId", anonymousID, ""},
	{all &^ screen, "context", callContext, "{}"},
	{all, "originalTimestamp", originalTimestamp, ""},
	{all, "receivedAt", receivedAt, ""},
	{all, "sentAt", sentAt, ""},
}

// appendBody appends the body of the call, after setTimes and setContext, in the form of esjson.
func (c *fields) appendBody(b []byte) []byte {
	b = append(append(append(b, `{"version":1,"type":"`...), c.kind...), '"')
	for i := range layout {
		l := &layout[i]
		value := c.v[l.member]
		if l.of&c.is == 0 || value == nil && l.missing == "" {
			continue
		}
		b = append(append(append(b, `,"`...), l.key...), `":`...)
		if value == nil {
			b = append(b, l.missing...)
		}
		b = append(b, value...)
	}
	return append(b, '}')
}

// setTimes replaces the times of the call by those of the body. All are in whole milliseconds, so a
// receiver can compute the timestamp from the others.
func (c *fields) setTimes(received, sent time.Time) {
	if !c.sent.IsZero() {
		sent = c.sent
	}
	original, sent := c.original.Truncate(time.Millisecond), sent.Truncate(time.Millisecond)
	received = received.Truncate(time.Millisecond)
	corrected := received
	if !original.IsZero() {
		corrected = original
		behind := received.Sub(sent) // the error of the sender's clock, at most 292 years
		if t := original.Add(behind); !sent.IsZero() && sent.Add(behind).Equal(received) && t.After(time.Time{}) && t.Year() <= 9999 {
			corrected = t
		}
	}
	c.setTime(timestamp, corrected)
	c.setTime(originalTimestamp, original)
	c.setTime(receivedAt, received)
	c.setTime(sentAt, sent)
}

// setTime sets a member to the time t, or to nil if t is zero.
func (c *fields) setTime(m member, t time.Time) {
	c.v[m] = nil
	if !t.IsZero() {
		c.set(m, appendTime(*c.forms, t))
	}
}

func appendTime(b []byte, t time.Time) []byte {
	return append(isotime.Append(append(b, '"'), t), '"')
}

// setContext replaces the context of the call by that of the body: the client's IP address, if the
// Envelope or a context allows it, and the members of the Envelope's context and of the call's.
func (e *Encoder) setContext(c *fields) {
	own, ip := c.v[callContext], e.env.IP
	if !e.env.Browser && string(find(own, "direct", e.direct)) != "true" {
		ip = ""
	}
	switch {
	case ip == "" && e.env.Context == nil:
		return
	case ip == "" && len(own) <= len(`{}`):
		c.v[callContext] = e.env.Context
		return
	}
	// A name may occur twice. Of the members with the name, esjson takes the last one.
	start := len(*c.forms)
	b := append(*c.forms, '{')
	if ip != "" {
		b = append(esjson.AppendString(append(b, `"ip":`...), ip), ',')
	}
	for _, object := range [][]byte{e.env.Context, own} {
		if len(object) > len(`{}`) {
			b = append(append(b, object[1:len(object)-1]...), ',')
		}
	}
	b[len(b)-1] = '}' // replaces the last comma
	*c.forms = b
	b, _ = esjson.Append(b, b[start:]) // no error: both contexts were parsed
	c.set(callContext, b)
}
