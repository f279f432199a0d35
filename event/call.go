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
	"github.com/hookferry/analytics/internal/uuid"
)

// maxLabel is the longest ID, Source, User or Name, in bytes. A digest replaces a longer one.
const maxLabel = 255

// space is JSON's white space.
const space = " \t\r\n"

// A member stands for a JSON member of a call that this package reads. It is an index into table.
type member int

const (
	userID member = iota
	anonymousID
	previousID
	groupID
	messageID
	eventName
	pageName // of a page or a screen
	category
	traits
	properties
	callContext
	switches
	timestamp
	originalTimestamp
	sentAt
	callType

	members // number of members
)

// A form says which JSON values a member may have.
type form int

const (
	anything   form = iota
	identifier      // a string or a number
	text            // a string
	object
)

// A kindSet is a set of types of call.
type kindSet uint8

const (
	identify kindSet = 1 << iota
	track
	page
	screen
	group
	alias

	all kindSet = 1<<iota - 1
)

// kinds has the types of call, in the order of the constants. fields.kind gets one of its strings: a
// part of the call's text would keep the whole call in memory.
var kinds = [...]string{"identify", "track", "page", "screen", "group", "alias"}

// table describes the members, by their index.
var table = [members]struct {
	key   string
	form  form
	of    kindSet // the types of call that have the member
	needs kindSet // the types of call that must have it
}{
	userID:            {"userId", identifier, all, alias},
	anonymousID:       {"anonymousId", identifier, all, 0},
	previousID:        {"previousId", identifier, alias, alias},
	groupID:           {"groupId", identifier, group, group},
	messageID:         {"messageId", identifier, all, 0},
	eventName:         {"event", text, track, track},
	pageName:          {"name", text, page | screen, 0},
	category:          {"category", text, page | screen, 0},
	traits:            {"traits", object, identify | group, 0},
	properties:        {"properties", object, track | page | screen, 0},
	callContext:       {"context", object, all, 0},
	switches:          {"integrations", object, all, 0},
	timestamp:         {"timestamp", anything, all, 0},
	originalTimestamp: {"originalTimestamp", anything, all, 0},
	sentAt:            {"sentAt", anything, all, 0},
	callType:          {"type", anything, all, 0},
}

// wrong returns the CallError for a member.
func (m member) wrong(code Code, problem string) error {
	return &CallError{Field: table[m].key, Code: code, Problem: problem}
}

// memberOf returns the member with this key. A map would be slower, because most keys differ in
// length.
func memberOf(key []byte) (member, bool) {
	for m := range members {
		if table[m].key == string(key) {
			return m, true
		}
	}
	return 0, false
}

// fields holds the members of a parsed call, as JSON values in v, in the canonical form of esjson. A
// value is nil if the member is missing or null. An id is a string that is not empty, and there
// always is a messageId. A number in a timestamp keeps its form. The values share the memory of the
// call or of forms.
type fields struct {
	forms *[]byte
	kind  string
	is    kindSet // the set that contains only kind
	v     [members][]byte
	// original and sent are the times of the call, zero if they are not known.
	original, sent time.Time
}

// read parses call and finds all that may be wrong with it. kind is the type of call, or empty if
// the call itself says its type.
func (c *fields) read(call []byte, kind string) error {
	if len(call) > analytics.MaxCallSize {
		return tooLarge(len(call))
	}
	var err error
	*c.forms, err = esjson.AppendMembers((*c.forms)[:0], call, func(key, value, form []byte) error {
		m, ok := memberOf(key)
		switch first := value[0]; {
		case !ok:
		case first == 'n':
			c.v[m] = nil
		case isNumber(value):
			c.v[m] = value
		default:
			c.v[m] = form
		}
		return nil
	})
	if err != nil {
		if err := esjson.Check(call); err != nil {
			return malformed(err)
		}
		return &CallError{Code: CodeWrongType, Problem: "a call is a JSON object"}
	}
	if err := c.readKind(kind); err != nil {
		return err
	}
	for m := range members {
		if table[m].of&c.is == 0 {
			c.v[m] = nil
		}
		if err := c.readMember(m); err != nil {
			return err
		}
	}
	for m := range members {
		if table[m].needs&c.is != 0 && c.v[m] == nil {
			return m.wrong(CodeMissing, "is required")
		}
	}
	if c.v[userID] == nil && c.v[anonymousID] == nil {
		return userID.wrong(CodeMissing, "or anonymousId is required")
	}
	m := timestamp
	if c.v[m] == nil {
		m = originalTimestamp
	}
	if c.original, err = c.time(m); err == nil {
		c.sent, err = c.time(sentAt)
	}
	return err
}

// readKind sets the type of the call to the argument known. If known is empty, readKind sets it to
// the value of the call's member "type".
func (c *fields) readKind(known string) error {
	var text [16]byte
	b := append(text[:0], known...)
	if typ := c.v[callType]; known == "" {
		switch {
		case typ == nil:
			return callType.wrong(CodeType, "is required")
		case typ[0] != '"':
			return callType.wrong(CodeWrongType, "has to be a string")
		}
		b = appendText(b, typ)
	}
	for i, kind := range kinds {
		if kind == string(b) {
			c.kind, c.is = kind, 1<<i
			return nil
		}
	}
	return callType.wrong(CodeType, "has to be identify, track, page, screen, group or alias")
}

// readMember checks the form of a member. An empty id or event counts as missing. An id becomes a
// string.
func (c *fields) readMember(m member) error {
	f, value := table[m].form, c.v[m]
	if string(value) == `""` && (f == identifier || m == eventName) {
		value, c.v[m] = nil, nil
	}
	switch {
	case value == nil && m == messageID:
		c.makeID(m, nil)
	case value == nil || f == anything:
	case f == object:
		if value[0] != '{' {
			return m.wrong(CodeWrongType, "has to be an object")
		}
	case f == identifier && isNumber(value):
		if c.makeID(m, value); string(c.v[m]) == `"null"` {
			return m.wrong(CodeWrongType, "is a number out of range")
		}
	case value[0] != '"':
		return m.wrong(CodeWrongType, "has to be a string")
	case m == messageID && len(value) > len(`""`)+analytics.MaxMessageID && utf8.RuneCount(appendText(nil, value)) > analytics.MaxMessageID:
		return m.wrong(CodeMessageID, fmt.Sprintf("has more than %d characters", analytics.MaxMessageID))
	}
	return nil
}

// makeID makes the id in m the text of a number, "null" if the number is out of range. An integer
// keeps all its digits: rounded to a double, the ids of two users could become the same. Without a
// number, the id becomes a random UUID.
func (c *fields) makeID(m member, number []byte) {
	start := len(*c.forms)
	b := append(*c.forms, '"')
	switch {
	case number == nil:
		b = uuid.Append(b)
	case string(number) == "-0":
		b = append(b, '0')
	case bytes.ContainsAny(number, ".eE"):
		b, _ = esjson.Append(b, number) // no error: the number was parsed with the call
	default:
		b = append(b, number...)
	}
	*c.forms = append(b, '"')
	c.v[m] = (*c.forms)[start:]
}

// isNumber reports whether a JSON value is a number.
func isNumber(value []byte) bool { return value[0] == '-' || '0' <= value[0] && value[0] <= '9' }

// appendText appends the text of a string of a parsed call. If value is nil, it appends nothing.
func appendText(dst, value []byte) []byte {
	dst, _ = esjson.AppendText(dst, value) // no error: the string was parsed with the call
	return dst
}

// appendID appends the ID of the event. It is the text of the messageId, or a digest if the
// messageId is too long or has lone surrogates. In UTF-8 all lone surrogates become the same
// character. So without the digest, two messageIds that a receiver tells apart could get the same ID.
func appendID(dst, messageID []byte) []byte {
	b := appendText(dst, messageID)
	text := b[len(dst):]
	// An escaped backslash before "ud" matches, too. Then the ID is a digest without need, which
	// does no harm.
	replaced := bytes.Contains(text, []byte("\uFFFD")) && bytes.Contains(messageID, []byte(`\ud`))
	if len(text) > maxLabel || replaced {
		return appendDigest(b[:len(dst)], messageID)
	}
	return b
}

// appendLabel appends the text of a string, or a digest of the text if it has more than maxLabel
// bytes. If value is nil, appendLabel appends nothing.
func appendLabel(dst, value []byte) []byte {
	b := appendText(dst, value)
	if text := b[len(dst):]; len(text) > maxLabel {
		return appendDigest(b[:len(dst)], text)
	}
	return b
}

// appendDigest appends "sha256:" and the digest of a text, in hexadecimal.
func appendDigest(dst, text []byte) []byte {
	sum := sha256.Sum256(text)
	return hex.AppendEncode(append(dst, "sha256:"...), sum[:])
}

// label returns text or, if text has more than maxLabel bytes, a digest of text.
func label(text string) string {
	if len(text) > maxLabel {
		return string(appendDigest(nil, []byte(text)))
	}
	return text
}

// off reports whether the integrations switch webhooks off for the call. ofBatch holds the switches
// of the batch. A switch of the call overrides the batch's switch of the same name.
func (c *fields) off(ofBatch []byte) bool {
	all := c.v[switches]
	if ofBatch != nil {
		buf := buffers.Get().(*[]byte)
		defer recycle(buf)
		*buf = appendMerged((*buf)[:0], "", ofBatch, all)
		all = *buf
	}
	on, _ := integrations.EnabledJSON(all, integrations.Webhooks) // no error: all is an object or nil
	return !on
}

// times returns in corrected the timestamp of the body. The results original and sent are the
// originalTimestamp and the sentAt of the body, zero if they are not known. All are in whole
// milliseconds, as in the body, so a receiver can compute the timestamp from the other times.
func (c *fields) times(received, batchSent time.Time) (corrected, original, sent time.Time) {
	sent = c.sent
	if sent.IsZero() {
		sent = batchSent
	}
	original, sent, received = c.original.Truncate(time.Millisecond), sent.Truncate(time.Millisecond), received.Truncate(time.Millisecond)
	switch {
	case original.IsZero():
		return received, original, sent
	case sent.IsZero():
		return original, original, sent
	}
	return correct(original, sent, received), original, sent
}

// time returns the time in a member, or the zero time if the member is missing.
func (c *fields) time(m member) (time.Time, error) {
	if c.v[m] == nil {
		return time.Time{}, nil
	}
	t, err := isotime.ParseJSON(c.v[m])
	if err != nil {
		return time.Time{}, m.wrong(CodeTimestamp, "is invalid: "+err.Error())
	}
	return t, nil
}

// correct returns original + (received - sent), which removes the error of the sender's clock. If
// that error is over 292 years, or the sum is not in the years 1 to 9999, it returns original.
func correct(original, sent, received time.Time) time.Time {
	behind := received.Sub(sent) // at most 292 years
	t := original.Add(behind)
	if !sent.Add(behind).Equal(received) || t.Year() < 1 || t.Year() > 9999 {
		return original
	}
	return t
}
