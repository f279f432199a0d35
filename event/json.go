package event

import (
	"bytes"
	"time"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/internal/esjson"
	"github.com/hookferry/analytics/internal/isotime"
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

// check parses and checks a whole call, including its timestamps and its messageId.
func (c *fields) check(call []byte) error {
	if err := c.read(call, ""); err != nil {
		return err
	}
	if _, _, _, err := c.times(time.Time{}, time.Time{}); err != nil {
		return err
	}
	_, err := c.appendID(nil)
	return err
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
	for m, made := range c.made {
		if made { // of two members with the same name, esjson takes the last
			b = append(append(append(b, `,"`...), table[m].key...), `":`...)
			b = append(b, c.v[m]...)
		}
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
