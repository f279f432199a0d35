package event

import "github.com/hookferry/analytics"

// JSON is an analytics.Message that consists of the JSON of one call, as clients of the HTTP
// tracking API send it, for webhook.Forwarder.Forward and Encoder.Encode.
type JSON []byte

var _ analytics.Message = JSON(nil)

// Validate implements [analytics.Message]. The error is a *CallError.
func (j JSON) Validate() error {
	forms := buffers.Get().(*[]byte)
	defer recycle(forms)
	c := fields{forms: forms}
	return c.read(j, "")
}

// AppendJSON implements [analytics.Message]. It appends the call unchanged: Encode adds a messageId
// and a timestamp if they are missing.
func (j JSON) AppendJSON(dst []byte) ([]byte, error) {
	if err := j.Validate(); err != nil {
		return dst, err
	}
	return append(dst, j...), nil
}
