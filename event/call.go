package event

import (
	"bytes"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/internal/esjson"
	"github.com/hookferry/analytics/internal/isotime"
	"github.com/hookferry/analytics/internal/uuid"
)

// A member stands for a JSON member of a call or a body. It is an index into table.
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
	receivedAt // of a body, not of a call

	members // number of members
)

type form int // the JSON values that a member may have

const (
	anything   form = iota
	identifier      // a string or a number
	text            // a string
	object
)

type kindSet uint8 // a set of types of call

const (
	identify kindSet = 1 << iota
	track
	page
	screen
	group
	alias

	all kindSet = 1<<iota - 1
)

// kinds has the types of call, in the order of the constants. fields.kind is one of these strings:
// a part of the call's text would keep the whole call in memory.
var kinds = [...]string{"identify", "track", "page", "screen", "group", "alias"}

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
	receivedAt:        {"receivedAt", anything, 0, 0},
}

func (m member) wrong(code Code, problem string) error {
	return &CallError{Field: table[m].key, Code: code, Problem: problem}
}

// memberOf returns the member with this key. The loop is faster than a map, because most keys
// differ in length.
func memberOf(key []byte) (member, bool) {
	for m := range members {
		if table[m].key == string(key) {
			return m, true
		}
	}
	return 0, false
}

// fields holds the members of a parsed call. v has their values as JSON in the canonical form of
// esjson, nil for a member that is missing or null. An id is a string that is not empty, and there
// always is a messageId. A number in a timestamp keeps its form. The values share the memory of the
// call, Encoder or forms.
type fields struct {
	forms          *[]byte
	kind           string
	is             kindSet // the set that contains only kind
	v              [members][]byte
	original, sent time.Time // the times of the call, zero if they are not known
	badTime        bool      // a time of the call could not be read
}

var emptyObject = []byte("{}")

// set sets a member to the end of forms, which the caller has extended by a value.
func (c *fields) set(m member, forms []byte) {
	c.v[m] = forms[len(*c.forms):]
	*c.forms = forms
}

// read parses call and finds all that may be wrong with it. kind may be empty if the call says it.
func (c *fields) read(call []byte, kind string) error {
	if len(call) > analytics.MaxCallSize {
		problem := fmt.Sprintf("the call has %d bytes, more than the limit of %d", len(call), analytics.MaxCallSize)
		return &CallError{Code: CodeTooLarge, Problem: problem}
	}
	var err error
	*c.forms, err = esjson.AppendMembers((*c.forms)[:0], call, func(key, value, form []byte) error {
		m, ok := memberOf(key)
		switch {
		case !ok:
		case value[0] == 'n':
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
			return &CallError{Code: CodeMalformed, Problem: err.Error()}
		}
		return &CallError{Code: CodeWrongType, Problem: "a call is a JSON object"}
	}
	if err := c.readKind(kind); err != nil {
		return err
	}
	for m := range members {
		if err := c.readMember(m); err != nil {
			return err
		}
	}
	if c.v[userID] == nil && c.v[anonymousID] == nil {
		return userID.wrong(CodeMissing, "or anonymousId is required")
	}
	c.sent = c.time(sentAt)
	if c.original = c.time(timestamp); c.v[timestamp] == nil {
		c.original = c.time(originalTimestamp)
	}
	return nil
}

// readKind sets the type of the call to known or, if that is empty, to the call's member "type".
func (c *fields) readKind(known string) error {
	name := []byte(known)
	if typ := c.v[callType]; known == "" {
		switch {
		case typ == nil:
			return callType.wrong(CodeType, "is required")
		case typ[0] != '"':
			return callType.wrong(CodeWrongType, "has to be a string")
		}
		name = typ[1 : len(typ)-1]
	}
	for i, kind := range kinds {
		if kind == string(name) {
			c.kind, c.is = kind, 1<<i
			return nil
		}
	}
	return callType.wrong(CodeType, "has to be identify, track, page, screen, group or alias")
}

// readMember checks a member. An empty id or event counts as missing. An id becomes a string.
func (c *fields) readMember(m member) error {
	rule, value := &table[m], c.v[m]
	if rule.of&c.is == 0 || string(value) == `""` && (rule.form == identifier || m == eventName) {
		value, c.v[m] = nil, nil
	}
	switch {
	case value == nil && rule.needs&c.is != 0:
		return m.wrong(CodeMissing, "is required")
	case value == nil && m == messageID:
		c.set(m, append(uuid.Append(append(*c.forms, '"')), '"'))
	case value == nil || rule.form == anything:
	case rule.form == object:
		if string(value) == "[]" { // PHP writes an empty map so
			c.v[m] = emptyObject
		} else if value[0] != '{' {
			return m.wrong(CodeWrongType, "has to be an object")
		}
	case rule.form == identifier && isNumber(value):
		if c.set(m, appendNumber(*c.forms, value)); string(c.v[m]) == `"null"` {
			return m.wrong(CodeWrongType, "is a number out of range")
		}
	case value[0] != '"':
		return m.wrong(CodeWrongType, "has to be a string")
	case m == messageID && len(value) > len(`""`)+analytics.MaxMessageID &&
		utf8.RuneCount(appendText(nil, value)) > analytics.MaxMessageID:
		return m.wrong(CodeMessageID, fmt.Sprintf("has more than %d characters", analytics.MaxMessageID))
	}
	return nil
}

// appendNumber appends a number as a string, "null" if it is out of range. An integer keeps all its
// digits: rounded to a double, the ids of two users could become the same.
func appendNumber(b, number []byte) []byte {
	b = append(b, '"')
	if string(number) == "-0" || bytes.ContainsAny(number, ".eE") {
		b, _ = esjson.Append(b, number) // no error: the number was parsed with the call
	} else {
		b = append(b, number...)
	}
	return append(b, '"')
}

func isNumber(value []byte) bool { return value[0] == '-' || '0' <= value[0] && value[0] <= '9' }

// appendText appends the text of a string of a parsed call. If value is nil, it appends nothing.
func appendText(dst, value []byte) []byte {
	if value != nil {
		dst, _ = esjson.AppendText(dst, value) // no error: the string was parsed with the call
	}
	return dst
}

// time returns the time in a member. A time that cannot be read counts as missing: a call without
// its time is worth more than no call. If the member is missing, time returns the zero time.
func (c *fields) time(m member) (t time.Time) {
	var err error
	if c.v[m] != nil {
		if t, err = isotime.ParseJSON(c.v[m]); err != nil {
			c.v[m], c.badTime = nil, true
		}
	}
	return t
}
