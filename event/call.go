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

// table describes the members, by their index.
var table = [members]struct {
	key  string
	form form
	of   kindSet // the types of call that have the member
}{
	userID:            {"userId", identifier, all},
	anonymousID:       {"anonymousId", identifier, all},
	previousID:        {"previousId", identifier, alias},
	groupID:           {"groupId", identifier, group},
	messageID:         {"messageId", identifier, all},
	eventName:         {"event", text, track},
	pageName:          {"name", text, page | screen},
	category:          {"category", text, page | screen},
	traits:            {"traits", object, identify | group},
	properties:        {"properties", object, track | page | screen},
	callContext:       {"context", object, all},
	switches:          {"integrations", object, all},
	timestamp:         {"timestamp", anything, all},
	originalTimestamp: {"originalTimestamp", anything, all},
	sentAt:            {"sentAt", anything, all},
	callType:          {"type", anything, all},
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

// fields holds the members of a parsed call, as JSON values in v. A value is nil if the member is
// missing or null. A number keeps its form, so that no digit of an id is lost. Any other value is
// in the canonical form of esjson. The values share the memory of the call or of forms.
type fields struct {
	forms *[]byte
	kind  string
	is    kindSet // the set that contains only kind
	v     [members][]byte
}

// kinds has the types of call. fields.kind gets one of its constants: a part of the call's text
// would keep the whole call in memory.
var kinds = map[string]struct {
	name string
	is   kindSet
}{
	"identify": {"identify", identify}, "track": {"track", track}, "page": {"page", page},
	"screen": {"screen", screen}, "group": {"group", group}, "alias": {"alias", alias},
}

// read parses call, and checks the presence and the forms of its members, but not its timestamps.
// kind is the type of call, or empty if the call itself says its type.
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
	if err := c.readKind(c.v[callType], kind); err != nil {
		return err
	}
	for m := range members {
		f, value := &table[m], &c.v[m]
		if *value == nil || f.of&c.is == 0 {
			*value = nil
			continue
		}
		if err := f.form.check(f.key, *value); err != nil {
			return err
		}
		if string(*value) == `""` && (f.form == identifier || m == eventName) {
			*value = nil
		}
	}
	return c.required()
}

// check returns an error if value does not have the form f. The error names the member by its key.
func (f form) check(key string, value []byte) error {
	wrong := func(problem string) error {
		return &CallError{Field: key, Code: CodeWrongType, Problem: problem}
	}
	switch {
	case f == anything:
	case f == object && value[0] != '{':
		return wrong("has to be an object")
	case f == object || value[0] == '"':
	case f != identifier || !isNumber(value):
		return wrong("has to be a string")
	case string(appendNumber(nil, value)) == "null":
		return wrong("is a number out of range")
	}
	return nil
}

// isNumber reports whether a JSON value is a number.
func isNumber(value []byte) bool { return value[0] == '-' || '0' <= value[0] && value[0] <= '9' }

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

// readKind sets the type of the call to the argument known. If known is empty, readKind sets it to
// typ, the value of the call's member "type".
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
	kind := kinds[string(b)]
	if c.kind, c.is = kind.name, kind.is; c.is == 0 {
		return &CallError{Field: "type", Code: CodeType, Problem: "has to be identify, track, page, screen, group or alias"}
	}
	return nil
}

// appendNumber appends the text of an id that is a number, or "null" if it is out of range. An
// integer keeps all its digits: rounded to a double, the ids of two users could become the same.
func appendNumber(dst, number []byte) []byte {
	switch {
	case string(number) == "-0":
		return append(dst, '0')
	case bytes.ContainsAny(number, ".eE"):
		dst, _ = esjson.Append(dst, number) // no error: the number was parsed with the call
		return dst
	}
	return append(dst, number...)
}

// required returns an error if a member that the type of call requires is missing.
func (c *fields) required() error {
	missing := func(m member, problem string) error {
		return &CallError{Field: table[m].key, Code: CodeMissing, Problem: problem}
	}
	for _, r := range [...]struct {
		of kindSet
		m  member
	}{{track, eventName}, {group, groupID}, {alias, userID}, {alias, previousID}} {
		if r.of == c.is && c.v[r.m] == nil {
			return missing(r.m, "is required")
		}
	}
	if c.v[userID] == nil && c.v[anonymousID] == nil {
		return missing(userID, "or anonymousId is required")
	}
	return nil
}

// appendID checks the messageId of the call, if it has one, and appends the ID of the event to dst,
// which is empty. The ID is the text of the messageId, or a digest if the messageId is too long or
// has lone surrogates. In UTF-8 all lone surrogates become the same character. So without the
// digest, two messageIds that a receiver tells apart could get the same ID.
func (c *fields) appendID(dst []byte) ([]byte, error) {
	if c.v[messageID] == nil {
		return dst, nil
	}
	b, err := appendIdentifierText(dst, c.v[messageID])
	if err != nil {
		return b, err
	}
	if len(b) > analytics.MaxMessageID && utf8.RuneCount(b) > analytics.MaxMessageID {
		return b, &CallError{Field: "messageId", Code: CodeMessageID, Problem: fmt.Sprintf("has more than %d characters", analytics.MaxMessageID)}
	}
	// An escaped backslash before "ud" matches, too. Then the ID is a digest without need, which
	// does no harm.
	replaced := bytes.Contains(b, []byte("\uFFFD")) && bytes.Contains(c.v[messageID], []byte(`\ud`))
	if len(b) > maxLabel || replaced {
		b = appendDigest(b[:0], c.v[messageID])
	}
	return b, nil
}

// appendLabel appends the text of value, a string or an id, or a digest of the text if it has more
// than maxLabel bytes. If value is nil, appendLabel appends nothing.
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

// appendIdentifierText appends the text of an id: a string, or a number.
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
func (c *fields) off(ofBatch []byte) (bool, error) {
	all := c.v[switches]
	if ofBatch != nil {
		buf := buffers.Get().(*[]byte)
		defer recycle(buf)
		*buf = appendMerged((*buf)[:0], "", ofBatch, all)
		all = *buf
	}
	on, err := integrations.EnabledJSON(all, integrations.Webhooks)
	if err != nil {
		return false, malformed(err)
	}
	return !on, nil
}

// times returns in corrected the timestamp of the body. The results original and sent are the
// originalTimestamp and the sentAt of the body, zero if they are not known. All are in whole
// milliseconds, as in the body, so a receiver can compute the timestamp from the other times.
func (c *fields) times(received, batchSent time.Time) (corrected, original, sent time.Time, err error) {
	m := timestamp
	if c.v[m] == nil {
		m = originalTimestamp
	}
	if original, err = c.time(m); err != nil {
		return
	}
	if sent, err = c.time(sentAt); err != nil {
		return
	}
	if sent.IsZero() {
		sent = batchSent
	}
	original, sent, received = original.Truncate(time.Millisecond), sent.Truncate(time.Millisecond), received.Truncate(time.Millisecond)
	switch {
	case original.IsZero():
		corrected = received
	case sent.IsZero():
		corrected = original
	default:
		corrected = correct(original, sent, received)
	}
	return
}

// time returns the time in a member, or the zero time if the member is missing.
func (c *fields) time(m member) (time.Time, error) {
	if c.v[m] == nil {
		return time.Time{}, nil
	}
	t, err := isotime.ParseJSON(c.v[m])
	if err != nil {
		return time.Time{}, &CallError{Field: table[m].key, Code: CodeTimestamp, Problem: "is invalid: " + err.Error()}
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
