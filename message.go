package analytics

import (
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/hookferry/analytics/internal/isotime"
)

// The limits of the HTTP tracking API. Sizes count bytes of JSON as sent, before
// compression; 1 KB is 1,024 bytes.
const (
	MaxCallSize   = 32 << 10  // one call: 32 KB
	MaxBatchSize  = 500 << 10 // one batch request, its envelope included: 500 KB
	MaxBatchCalls = 2500      // calls in one batch request
)

// MaxMessageID is the maximum length of a MessageId, in characters.
const MaxMessageID = 99

// A Message is one call of the tracking API: an [*Identify], [*Track], [*Page], [*Screen],
// [*Group] or [*Alias]. No other type is a Message.
//
// Neither method changes the message or retains any part of it. A nil pointer is an error,
// like everything else that Validate refuses.
type Message interface {
	// Validate reports the first field that is missing or malformed, as a
	// *FieldError. It does not look inside maps; AppendJSON does.
	Validate() error

	// AppendJSON appends the call to dst as one JSON object: type, messageId (a random UUID
	// if the message has none), timestamp (the current time if the message has none), then
	// the fields of its type. It calls Validate first. On error, a *FieldError or a
	// *SizeError, it returns dst unchanged.
	AppendJSON(dst []byte) ([]byte, error)

	message()
}

// Identify ties a user to traits such as a name, an email address or a plan.
type Identify struct {
	UserId       string         // the id in your own database; this or AnonymousId is required
	AnonymousId  string         // an id for somebody you do not know yet
	Traits       map[string]any // what is known of the user
	Context      map[string]any // where the call comes from, in addition to what the library adds
	Integrations map[string]any // destination switches, such as {"All": false, "Webhooks": true}
	Timestamp    string         // when it happened, ISO 8601 (see FormatTime); empty means now
	MessageId    string         // at most MaxMessageID characters; empty means a random UUID
}

// Track records something a user did.
type Track struct {
	UserId       string         // the id in your own database; this or AnonymousId is required
	AnonymousId  string         // an id for somebody you do not know yet
	Event        string         // what happened, such as "Order Completed"; required
	Properties   map[string]any // what belongs to the event
	Context      map[string]any // where the call comes from, in addition to what the library adds
	Integrations map[string]any // destination switches, such as {"All": false, "Webhooks": true}
	Timestamp    string         // when it happened, ISO 8601 (see FormatTime); empty means now
	MessageId    string         // at most MaxMessageID characters; empty means a random UUID
}

// Page records that a user saw a page.
type Page struct {
	UserId       string         // the id in your own database; this or AnonymousId is required
	AnonymousId  string         // an id for somebody you do not know yet
	Category     string         // the page's category
	Name         string         // the page's name
	Properties   map[string]any // url, title, referrer, path and others
	Traits       map[string]any // another name of Properties; set at most one of them
	Context      map[string]any // where the call comes from, in addition to what the library adds
	Integrations map[string]any // destination switches, such as {"All": false, "Webhooks": true}
	Timestamp    string         // when it happened, ISO 8601 (see FormatTime); empty means now
	MessageId    string         // at most MaxMessageID characters; empty means a random UUID
}

// Screen records that a user saw a screen of an app.
type Screen struct {
	UserId       string         // the id in your own database; this or AnonymousId is required
	AnonymousId  string         // an id for somebody you do not know yet
	Name         string         // the screen's name
	Properties   map[string]any // what belongs to the screen
	Context      map[string]any // where the call comes from, in addition to what the library adds
	Integrations map[string]any // destination switches, such as {"All": false, "Webhooks": true}
	Timestamp    string         // when it happened, ISO 8601 (see FormatTime); empty means now
	MessageId    string         // at most MaxMessageID characters; empty means a random UUID
}

// Group ties a user to a group: a company, an account, a team.
type Group struct {
	UserId       string         // the id in your own database; this or AnonymousId is required
	AnonymousId  string         // an id for somebody you do not know yet
	GroupId      string         // the group's id in your own database; required
	Traits       map[string]any // what is known of the group
	Context      map[string]any // where the call comes from, in addition to what the library adds
	Integrations map[string]any // destination switches, such as {"All": false, "Webhooks": true}
	Timestamp    string         // when it happened, ISO 8601 (see FormatTime); empty means now
	MessageId    string         // at most MaxMessageID characters; empty means a random UUID
}

// Alias says that two ids are the same user.
type Alias struct {
	UserId       string         // the new identity; required
	PreviousId   string         // the identity to alias from; required
	AnonymousId  string         // an id for somebody you do not know yet
	Context      map[string]any // where the call comes from, in addition to what the library adds
	Integrations map[string]any // destination switches, such as {"All": false, "Webhooks": true}
	Timestamp    string         // when it happened, ISO 8601 (see FormatTime); empty means now
	MessageId    string         // at most MaxMessageID characters; empty means a random UUID
}

// FormatTime returns t in the form of a Timestamp: UTC, in milliseconds.
func FormatTime(t time.Time) string { return string(isotime.Append(nil, t)) }

// A FieldError says which field of a message cannot be sent, and why.
type FieldError struct {
	Type    string // the call: "identify", "track", "page", "screen", "group" or "alias"; "enqueue" for any other type
	Field   string // the Go field, followed by the path of a value in it: "Event", "Properties.cart[3].price"
	Problem string // what is wrong with it: "is required"
	Err     error  // the cause, or nil
}

func (e *FieldError) Error() string {
	return "analytics: " + e.Type + ": " + e.Field + " " + e.Problem
}

func (e *FieldError) Unwrap() error { return e.Err }

// A SizeError says that a call is larger than MaxCallSize.
type SizeError struct {
	Type  string // the call: "track" and so on
	Size  int    // bytes of the call as sent; 0 if there are more than 256 KB, which were not counted
	Limit int    // MaxCallSize
}

func (e *SizeError) Error() string {
	if e.Size == 0 {
		return fmt.Sprintf("analytics: %s: the call has more than %d bytes, the limit is %d", e.Type, maxMeasured, e.Limit)
	}
	return fmt.Sprintf("analytics: %s: the call has %d bytes, the limit is %d", e.Type, e.Size, e.Limit)
}

func (*Identify) message() {}
func (*Track) message()    {}
func (*Page) message()     {}
func (*Screen) message()   {}
func (*Group) message()    {}
func (*Alias) message()    {}

// Validate implements [Message].
func (m *Identify) Validate() error {
	if m == nil {
		return isNil("identify")
	}
	return checkCommon("identify", m.UserId, m.AnonymousId, m.MessageId, m.Timestamp)
}

// Validate implements [Message].
func (m *Track) Validate() error {
	switch {
	case m == nil:
		return isNil("track")
	case m.Event == "":
		return isMissing("track", "Event")
	}
	return checkCommon("track", m.UserId, m.AnonymousId, m.MessageId, m.Timestamp)
}

// Validate implements [Message].
func (m *Page) Validate() error {
	switch {
	case m == nil:
		return isNil("page")
	case m.Properties != nil && m.Traits != nil:
		return &FieldError{Type: "page", Field: "Traits", Problem: "is set in addition to Properties, but is only another name of it"}
	}
	return checkCommon("page", m.UserId, m.AnonymousId, m.MessageId, m.Timestamp)
}

// Validate implements [Message].
func (m *Screen) Validate() error {
	if m == nil {
		return isNil("screen")
	}
	return checkCommon("screen", m.UserId, m.AnonymousId, m.MessageId, m.Timestamp)
}

// Validate implements [Message].
func (m *Group) Validate() error {
	switch {
	case m == nil:
		return isNil("group")
	case m.GroupId == "":
		return isMissing("group", "GroupId")
	}
	return checkCommon("group", m.UserId, m.AnonymousId, m.MessageId, m.Timestamp)
}

// Validate implements [Message].
func (m *Alias) Validate() error {
	switch {
	case m == nil:
		return isNil("alias")
	case m.UserId == "":
		return isMissing("alias", "UserId")
	case m.PreviousId == "":
		return isMissing("alias", "PreviousId")
	}
	return checkCommon("alias", m.UserId, m.AnonymousId, m.MessageId, m.Timestamp)
}

func isNil(kind string) error {
	return &FieldError{Type: kind, Field: "message", Problem: "is nil"}
}

func isMissing(kind, field string) error {
	return &FieldError{Type: kind, Field: field, Problem: "is required"}
}

// checkCommon checks the fields that all kinds of messages have.
func checkCommon(kind, userID, anonymousID, messageID, timestamp string) error {
	switch {
	case userID == "" && anonymousID == "":
		return &FieldError{Type: kind, Field: "UserId", Problem: "or AnonymousId is required"}
	case len(messageID) > MaxMessageID && utf8.RuneCountInString(messageID) > MaxMessageID:
		return &FieldError{Type: kind, Field: "MessageId", Problem: fmt.Sprintf("is longer than %d characters", MaxMessageID)}
	case timestamp == "":
		return nil
	}
	if _, err := isotime.Parse(timestamp); err != nil {
		return &FieldError{Type: kind, Field: "Timestamp", Problem: "is invalid: " + err.Error(), Err: err}
	}
	return nil
}
