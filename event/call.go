package event

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/integrations"
	"github.com/hookferry/analytics/internal/esjson"
	"github.com/hookferry/analytics/internal/isotime"
)

// maxLabel is how many bytes an ID, a Source, a User and a Name have at most.
const maxLabel = 255

// space is JSON's white space.
const space = " \t\r\n"

// fields are the members of a call that count, as JSON, and nil if missing or
// null: numbers as they were written, so that no digit of an id is lost, and
// everything else in the form that bodies have. They refer to the call, or else to
// forms.
type fields struct {
	forms *[]byte
	kind  string

	userID, anonymousID, previousID, groupID, messageID []byte

	event, name, category       []byte
	traits, properties, context []byte
	integrations                []byte

	timestamp, originalTimestamp, sentAt []byte
}

// kinds are the types of call. Looking one up gives a string that does not
// refer to the call.
var kinds = map[string]string{
	"identify": "identify", "track": "track", "page": "page", "screen": "screen", "group": "group", "alias": "alias",
}

// read finds the members of call and checks that they are there and of the
// right type; the values of timestamps are not looked at. kind is the type of call
// where something else than the call tells it, else empty.
func (c *fields) read(call []byte, kind string) error {
	if len(call) > analytics.MaxCallSize {
		return tooLarge(len(call))
	}
	var typ []byte
	var err error
	*c.forms, err = esjson.AppendMembers((*c.forms)[:0], call, func(key, value, form []byte) error {
		var field *[]byte
		switch string(key) {
		case "type":
			field = &typ
		case "userId":
			field = &c.userID
		case "anonymousId":
			field = &c.anonymousID
		case "previousId":
			field = &c.previousID
		case "groupId":
			field = &c.groupID
		case "messageId":
			field = &c.messageID
		case "event":
			field = &c.event
		case "name":
			field = &c.name
		case "category":
			field = &c.category
		case "traits":
			field = &c.traits
		case "properties":
			field = &c.properties
		case "context":
			field = &c.context
		case "integrations":
			field = &c.integrations
		case "timestamp":
			field = &c.timestamp
		case "originalTimestamp":
			field = &c.originalTimestamp
		case "sentAt":
			field = &c.sentAt
		default:
			return nil
		}
		switch first := value[0]; {
		case first == 'n':
			*field = nil
		case first == '-' || '0' <= first && first <= '9':
			*field = value
		default:
			*field = form
		}
		return nil
	})
	if err != nil {
		if err := esjson.Check(call); err != nil {
			return malformed(err)
		}
		return &CallError{Code: CodeWrongType, Problem: "a call is a JSON object"}
	}
	if err := c.readKind(typ, kind); err != nil {
		return err
	}
	c.forget()
	for _, f := range [...]struct {
		name  string
		value []byte
	}{
		{"userId", c.userID}, {"anonymousId", c.anonymousID}, {"previousId", c.previousID},
		{"groupId", c.groupID}, {"messageId", c.messageID},
	} {
		if err := checkIdentifier(f.name, f.value); err != nil {
			return err
		}
	}
	for _, f := range [...]struct {
		name  string
		value []byte
	}{{"event", c.event}, {"name", c.name}, {"category", c.category}} {
		if len(f.value) > 0 && f.value[0] != '"' {
			return &CallError{Field: f.name, Code: CodeWrongType, Problem: "has to be a string"}
		}
	}
	for _, f := range [...]struct {
		name  string
		value []byte
	}{{"traits", c.traits}, {"properties", c.properties}, {"context", c.context}, {"integrations", c.integrations}} {
		if len(f.value) > 0 && f.value[0] != '{' {
			return &CallError{Field: f.name, Code: CodeWrongType, Problem: "has to be an object"}
		}
	}
	for _, id := range []*[]byte{&c.userID, &c.anonymousID, &c.previousID, &c.groupID, &c.messageID, &c.event} {
		if string(*id) == `""` {
			*id = nil
		}
	}
	return c.required()
}

// forget drops the fields that a call of the type has no use for, whatever they
// are.
func (c *fields) forget() {
	if c.kind != "track" {
		c.event = nil
	}
	if c.kind != "page" && c.kind != "screen" {
		c.name, c.category = nil, nil
	}
	if c.kind != "track" && c.kind != "page" && c.kind != "screen" {
		c.properties = nil
	}
	if c.kind != "identify" && c.kind != "group" {
		c.traits = nil
	}
	if c.kind != "group" {
		c.groupID = nil
	}
	if c.kind != "alias" {
		c.previousID = nil
	}
}

// check reads a call that comes alone, timestamps and messageId included.
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

// readKind finds the type of call: what is known of it, or else typ, its own.
func (c *fields) readKind(typ []byte, known string) error {
	var text [16]byte
	b := append(text[:0], known...)
	if known == "" {
		switch {
		case typ == nil:
			return &CallError{Field: "type", Code: CodeType, Problem: "is required"}
		case typ[0] != '"':
			return &CallError{Field: "type", Code: CodeWrongType, Problem: "has to be a string"}
		}
		var err error
		if b, err = esjson.AppendText(b, typ); err != nil {
			return malformed(err)
		}
	}
	if c.kind = kinds[string(b)]; c.kind == "" {
		return &CallError{Field: "type", Code: CodeType, Problem: "has to be identify, track, page, screen, group or alias"}
	}
	return nil
}

// checkIdentifier accepts a string, and a number in place of one.
func checkIdentifier(name string, value []byte) error {
	if len(value) == 0 || value[0] == '"' {
		return nil
	}
	if c := value[0]; c != '-' && (c < '0' || c > '9') {
		return &CallError{Field: name, Code: CodeWrongType, Problem: "has to be a string"}
	}
	if b := appendNumber(nil, value); b[0] == 'n' {
		return &CallError{Field: name, Code: CodeWrongType, Problem: "is a number out of range"}
	}
	return nil
}

// appendNumber appends the text of an id that is a number, "null" if that is out
// of range. An integer stands for its digits, however many: through a double
// the ids of two users, or of two calls, could become one. Another number is
// written as ECMAScript does.
func appendNumber(dst, number []byte) []byte {
	switch {
	case string(number) == "-0":
		return append(dst, '0')
	case bytes.ContainsAny(number, ".eE"):
		dst, _ = esjson.Append(dst, number) // it was read with the call
		return dst
	}
	return append(dst, number...)
}

// required checks what the types require.
func (c *fields) required() error {
	missing := func(field, problem string) error {
		return &CallError{Field: field, Code: CodeMissing, Problem: problem}
	}
	switch {
	case c.kind == "track" && c.event == nil:
		return missing("event", "is required")
	case c.kind == "group" && c.groupID == nil:
		return missing("groupId", "is required")
	case c.kind == "alias":
		if c.userID == nil {
			return missing("userId", "is required")
		}
		if c.previousID == nil {
			return missing("previousId", "is required")
		}
	case c.userID == nil && c.anonymousID == nil:
		return missing("userId", "or anonymousId is required")
	}
	return nil
}

// appendID appends the ID of the event to dst, which is empty; nothing if the call
// has no messageId. It checks the messageId. The ID is its text, or a digest where
// that is too long or does not tell it from others: two lone surrogates are two
// messageIds for a receiver, but have no text of their own.
func (c *fields) appendID(dst []byte) ([]byte, error) {
	if c.messageID == nil {
		return dst, nil
	}
	b, err := appendIdentifierText(dst, c.messageID)
	if err != nil {
		return b, err
	}
	if err := checkMessageID(b); err != nil {
		return b, err
	}
	// An escaped backslash may look like a surrogate; then there is a digest, too.
	replaced := bytes.Contains(b, []byte("\uFFFD")) && bytes.Contains(c.messageID, []byte(`\ud`))
	if len(b) > maxLabel || replaced {
		b = appendDigest(b[:0], c.messageID)
	}
	return b, nil
}

// appendLabel appends the text of a string or an identifier, or a digest of the text
// if that is longer than 255 bytes; nothing if there is no value.
func appendLabel(dst, value []byte) ([]byte, error) {
	if value == nil {
		return dst, nil
	}
	b, err := appendIdentifierText(dst, value)
	if text := b[len(dst):]; err == nil && len(text) > maxLabel {
		b = appendDigest(dst, text)
	}
	return b, err
}

// appendIdentifierText appends the text of a string, or of an id that is a number.
func appendIdentifierText(dst, value []byte) ([]byte, error) {
	if value[0] != '"' {
		return appendNumber(dst, value), nil
	}
	b, err := esjson.AppendText(dst, value)
	if err != nil {
		return b, malformed(err)
	}
	return b, nil
}

// appendDigest appends what stands for a text that is too long.
func appendDigest(dst, text []byte) []byte {
	sum := sha256.Sum256(text)
	return hex.AppendEncode(append(dst, "sha256:"...), sum[:])
}

// label returns text, or a digest of it if it is longer than 255 bytes.
func label(text string) string {
	if len(text) > maxLabel {
		return string(appendDigest(nil, []byte(text)))
	}
	return text
}

// checkMessageID checks the length of the text of a messageId.
func checkMessageID(text []byte) error {
	if len(text) > analytics.MaxMessageID && utf8.RuneCount(text) > analytics.MaxMessageID {
		return &CallError{Field: "messageId", Code: CodeMessageID, Problem: fmt.Sprintf("has more than %d characters", analytics.MaxMessageID)}
	}
	return nil
}

// off reports whether the switches of the call, and those that all calls have in common, say
// that it is not forwarded.
func (c *fields) off(common []byte) (bool, error) {
	switches := c.integrations
	if common != nil {
		buf := buffers.Get().(*[]byte)
		defer recycle(buf)
		*buf = appendMerged((*buf)[:0], "", common, c.integrations)
		switches = *buf
	}
	on, err := integrations.EnabledJSON(switches, integrations.Webhooks)
	if err != nil {
		return false, malformed(err)
	}
	return !on, nil
}

// times returns the timestamp of the body and the two it is made from, which
// are zero if not known. All are in whole milliseconds, as they are written, so
// that what a reader computes from them is what is there.
func (c *fields) times(received, batchSent time.Time) (timestamp, original, sent time.Time, err error) {
	field, value := "timestamp", c.timestamp
	if value == nil {
		field, value = "originalTimestamp", c.originalTimestamp
	}
	if original, err = parseTime(field, value); err != nil {
		return
	}
	if sent, err = parseTime("sentAt", c.sentAt); err != nil {
		return
	}
	if sent.IsZero() {
		sent = batchSent
	}
	original, sent, received = original.Truncate(time.Millisecond), sent.Truncate(time.Millisecond), received.Truncate(time.Millisecond)
	switch {
	case original.IsZero():
		timestamp = received
	case sent.IsZero():
		timestamp = original
	default:
		timestamp = corrected(original, sent, received)
	}
	return
}

func parseTime(field string, value []byte) (time.Time, error) {
	if value == nil {
		return time.Time{}, nil
	}
	t, err := isotime.ParseJSON(value)
	if err != nil {
		return time.Time{}, &CallError{Field: field, Code: CodeTimestamp, Problem: "is invalid: " + err.Error()}
	}
	return t, nil
}

// corrected moves original by what the sender's clock was behind ours, unless
// that clock was no clock.
func corrected(original, sent, received time.Time) time.Time {
	behind := received.Sub(sent) // at most 292 years
	t := original.Add(behind)
	if !sent.Add(behind).Equal(received) || t.Year() < 1 || t.Year() > 9999 {
		return original
	}
	return t
}
