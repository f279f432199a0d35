package event

import (
	"bytes"
	"time"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/internal/esjson"
	"github.com/hookferry/analytics/internal/isotime"
	"github.com/hookferry/analytics/internal/uuid"
)

// JSON is an analytics.Message that consists of the JSON of one call, as clients of the HTTP
// tracking API send it, for webhook.Forwarder.Forward and Encoder.Encode.
type JSON []byte

var _ analytics.Message = JSON(nil)

// Validate implements [analytics.Message]. The error is a *CallError.
func (j JSON) Validate() error {
	forms := buffers.Get().(*[]byte)
	defer recycle(forms)
	c := fields{forms: forms}
	return c.check(j)
}

// AppendJSON implements [analytics.Message]. It appends the call with all its members, and
// adds a messageId and a timestamp if they are missing.
func (j JSON) AppendJSON(dst []byte) ([]byte, error) {
	forms := buffers.Get().(*[]byte)
	defer recycle(forms)
	c := fields{forms: forms}
	if err := c.check(j); err != nil {
		return dst, err
	}
	buf := buffers.Get().(*[]byte)
	defer recycle(buf)
	b := append((*buf)[:0], bytes.TrimRight(j, space)...)
	b = b[:len(b)-1]
	for m := userID; m <= messageID; m++ {
		// Append a long number once more, as a string, so that an integer keeps the digits that a
		// double cannot hold. Of two members with the same name, esjson takes the last.
		if value := c.v[m]; len(value) > 15 && value[0] != '"' {
			b = append(append(append(b, `,"`...), table[m].key...), `":`...)
			b = appendIdentifier(b, value)
		}
	}
	if c.v[messageID] == nil {
		b = append(b, `,"messageId":"`...)
		b = append(uuid.Append(b), '"')
	}
	if c.v[timestamp] == nil && c.v[originalTimestamp] == nil {
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
