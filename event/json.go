package event

import (
	"bytes"
	"time"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/internal/esjson"
	"github.com/hookferry/analytics/internal/isotime"
	"github.com/hookferry/analytics/internal/uuid"
)

// JSON is the JSON of one call, as clients of the HTTP tracking API send it,
// as a message: what webhook.Forwarder.Forward and Encode take in place of the message of a type.
type JSON []byte

var _ analytics.Message = JSON(nil)

// Validate implements [analytics.Message]. The error is a *CallError.
func (j JSON) Validate() error {
	forms := buffers.Get().(*[]byte)
	defer recycle(forms)
	c := fields{forms: forms}
	return c.check(j)
}

// AppendJSON implements [analytics.Message]: it appends the call with all its
// members, the messageId and the timestamp that it lacks among them.
func (j JSON) AppendJSON(dst []byte) ([]byte, error) {
	forms := buffers.Get().(*[]byte)
	defer recycle(forms)
	c := fields{forms: forms}
	if err := c.check(j); err != nil {
		return dst, err
	}
	buf := buffers.Get().(*[]byte)
	defer recycle(buf)
	// Where there are two members with one name, esjson takes the last.
	b := append((*buf)[:0], bytes.TrimRight(j, space)...)
	b = b[:len(b)-1]
	for _, f := range [...]struct {
		name  string
		value []byte
	}{
		{`,"userId":`, c.userID}, {`,"anonymousId":`, c.anonymousID}, {`,"previousId":`, c.previousID},
		{`,"groupId":`, c.groupID}, {`,"messageId":`, c.messageID},
	} {
		// As a string, an integer that a double cannot hold keeps all digits.
		if len(f.value) > 15 && f.value[0] != '"' {
			b = append(b, f.name...)
			b = appendIdentifier(b, f.value)
		}
	}
	if c.messageID == nil {
		b = append(b, `,"messageId":"`...)
		b = append(uuid.Append(b), '"')
	}
	if c.timestamp == nil && c.originalTimestamp == nil {
		b = append(b, `,"timestamp":"`...)
		b = append(isotime.Append(b, time.Now()), '"')
	}
	*buf = append(b, '}')
	n := len(dst)
	dst, err := esjson.Append(dst, *buf)
	if err != nil {
		return dst, malformed(err)
	}
	if size := len(dst) - n; size > analytics.MaxCallSize {
		return dst[:n], tooLarge(size)
	}
	return dst, nil
}
