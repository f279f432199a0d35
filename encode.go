package analytics

import (
	"errors"
	"time"

	"github.com/hookferry/analytics/internal/esjson"
	"github.com/hookferry/analytics/internal/isotime"
	"github.com/hookferry/analytics/internal/uuid"
)

// AppendJSON implements [Message].
func (m *Identify) AppendJSON(dst []byte) ([]byte, error) {
	if err := m.Validate(); err != nil {
		return dst, err
	}
	e := encoder{dst: dst, start: len(dst)}
	e.open(`{"type":"identify","messageId":`, m.MessageId, m.Timestamp, m.UserId, m.AnonymousId)
	e.object(`,"traits":`, "Traits", m.Traits)
	return e.end("identify", m.Context, m.Integrations)
}

// AppendJSON implements [Message].
func (m *Track) AppendJSON(dst []byte) ([]byte, error) {
	if err := m.Validate(); err != nil {
		return dst, err
	}
	e := encoder{dst: dst, start: len(dst)}
	e.open(`{"type":"track","messageId":`, m.MessageId, m.Timestamp, m.UserId, m.AnonymousId)
	e.text(`,"event":`, m.Event)
	e.object(`,"properties":`, "Properties", m.Properties)
	return e.end("track", m.Context, m.Integrations)
}

// AppendJSON implements [Message].
func (m *Page) AppendJSON(dst []byte) ([]byte, error) {
	if err := m.Validate(); err != nil {
		return dst, err
	}
	e := encoder{dst: dst, start: len(dst)}
	e.open(`{"type":"page","messageId":`, m.MessageId, m.Timestamp, m.UserId, m.AnonymousId)
	e.text(`,"name":`, m.Name)
	e.text(`,"category":`, m.Category)
	if m.Traits != nil {
		e.object(`,"properties":`, "Traits", m.Traits)
	} else {
		e.object(`,"properties":`, "Properties", m.Properties)
	}
	return e.end("page", m.Context, m.Integrations)
}

// AppendJSON implements [Message].
func (m *Screen) AppendJSON(dst []byte) ([]byte, error) {
	if err := m.Validate(); err != nil {
		return dst, err
	}
	e := encoder{dst: dst, start: len(dst)}
	e.open(`{"type":"screen","messageId":`, m.MessageId, m.Timestamp, m.UserId, m.AnonymousId)
	e.text(`,"name":`, m.Name)
	e.object(`,"properties":`, "Properties", m.Properties)
	return e.end("screen", m.Context, m.Integrations)
}

// AppendJSON implements [Message].
func (m *Group) AppendJSON(dst []byte) ([]byte, error) {
	if err := m.Validate(); err != nil {
		return dst, err
	}
	e := encoder{dst: dst, start: len(dst)}
	e.open(`{"type":"group","messageId":`, m.MessageId, m.Timestamp, m.UserId, m.AnonymousId)
	e.text(`,"groupId":`, m.GroupId)
	e.object(`,"traits":`, "Traits", m.Traits)
	return e.end("group", m.Context, m.Integrations)
}

// AppendJSON implements [Message].
func (m *Alias) AppendJSON(dst []byte) ([]byte, error) {
	if err := m.Validate(); err != nil {
		return dst, err
	}
	e := encoder{dst: dst, start: len(dst)}
	e.open(`{"type":"alias","messageId":`, m.MessageId, m.Timestamp, m.UserId, m.AnonymousId)
	e.text(`,"previousId":`, m.PreviousId)
	return e.end("alias", m.Context, m.Integrations)
}

// maxMeasured bounds the memory and the time of a call that is too large, in bytes. A call
// is encoded up to this size, so that a SizeError can say how large the call is.
const maxMeasured = 8 * MaxCallSize

// An encoder appends the members of one message, in the order in which they are sent. It
// stops at the first error. Names are passed with their comma, quotes and colon, so that
// each is appended in one copy.
type encoder struct {
	dst   []byte
	start int    // offset of the message in dst
	field string // the Go field that err belongs to
	err   error
}

// open begins a message. The argument head is the text of the message before the value of
// messageId.
func (e *encoder) open(head, messageID, timestamp, userID, anonymousID string) {
	dst := append(e.dst, head...)
	if messageID == "" {
		dst = append(dst, '"')
		dst = uuid.Append(dst)
		dst = append(dst, `","timestamp":"`...)
	} else {
		dst = esjson.AppendString(dst, messageID)
		dst = append(dst, `,"timestamp":"`...)
	}
	at := time.Now()
	if timestamp != "" {
		at, _ = isotime.Parse(timestamp) // Validate has checked it
	}
	dst = isotime.Append(dst, at)
	e.dst = append(dst, '"')
	e.text(`,"userId":`, userID)
	e.text(`,"anonymousId":`, anonymousID)
}

// text appends a member unless its value is empty.
func (e *encoder) text(name, value string) {
	if value == "" || e.err != nil {
		return
	}
	if len(value) > maxMeasured-(len(e.dst)-e.start) {
		e.err = esjson.ErrLong
		return
	}
	e.dst = esjson.AppendString(append(e.dst, name...), value)
}

// object appends a member unless its value is empty. The argument field names its Go field.
func (e *encoder) object(name, field string, value map[string]any) {
	if len(value) == 0 || e.err != nil {
		return
	}
	e.field = field
	e.dst, e.err = esjson.AppendMember(append(e.dst, name...), value, e.start+maxMeasured)
}

// end closes the message. On error it removes the message from dst.
func (e *encoder) end(kind string, context, integrations map[string]any) ([]byte, error) {
	e.object(`,"context":`, "Context", context)
	e.object(`,"integrations":`, "Integrations", integrations)
	switch {
	case e.err == esjson.ErrLong:
		return e.dst[:e.start], &SizeError{Type: kind, Limit: MaxCallSize}
	case e.err != nil:
		return e.dst[:e.start], e.fieldError(kind)
	}
	e.dst = append(e.dst, '}')
	if size := len(e.dst) - e.start; size > MaxCallSize {
		return e.dst[:e.start], &SizeError{Type: kind, Size: size, Limit: MaxCallSize}
	}
	return e.dst, nil
}

func (e *encoder) fieldError(kind string) error {
	field, problem := e.field, e.err.Error()
	var v *esjson.ValueError
	if errors.As(e.err, &v) {
		problem = v.Problem
		switch {
		case v.Path == "", errors.Is(v, esjson.ErrDepth): // leave out the path: it has 1,000 levels
		case v.Path[0] == '[':
			field += v.Path
		default:
			field += "." + v.Path
		}
	}
	return &FieldError{Type: kind, Field: field, Problem: "cannot be sent: " + problem, Err: e.err}
}
