package analytics

import (
	"cmp"
	"encoding/json"
	"maps"
	"strings"
	"time"

	root "github.com/hookferry/analytics"
	"github.com/hookferry/analytics/internal/uuid"
)

// A Message is an Identify, Track, Page, Screen, Group or Alias.
type Message interface {
	// Validate returns a FieldError that names the first missing field.
	Validate() error
}

// Identify ties a user to traits. UserId or AnonymousId is required.
type Identify struct {
	Type         string       `json:"type,omitempty"`      // set by the library
	MessageId    string       `json:"messageId,omitempty"` // at most 99 characters; empty means a random UUID
	AnonymousId  string       `json:"anonymousId,omitempty"`
	UserId       string       `json:"userId,omitempty"`
	Timestamp    time.Time    `json:"timestamp,omitempty"` // when it happened; zero means now
	Context      *Context     `json:"context,omitempty"`
	Traits       Traits       `json:"traits,omitempty"`
	Integrations Integrations `json:"integrations,omitempty"`
}

// Track records what a user did. Event is required, and UserId or AnonymousId.
type Track struct {
	Type         string       `json:"type,omitempty"`      // set by the library
	MessageId    string       `json:"messageId,omitempty"` // at most 99 characters; empty means a random UUID
	AnonymousId  string       `json:"anonymousId,omitempty"`
	UserId       string       `json:"userId,omitempty"`
	Event        string       `json:"event"`
	Timestamp    time.Time    `json:"timestamp,omitempty"` // when it happened; zero means now
	Context      *Context     `json:"context,omitempty"`
	Properties   Properties   `json:"properties,omitempty"`
	Integrations Integrations `json:"integrations,omitempty"`
}

// Page records that a user saw a page. UserId or AnonymousId is required.
type Page struct {
	Type         string       `json:"type,omitempty"`      // set by the library
	MessageId    string       `json:"messageId,omitempty"` // at most 99 characters; empty means a random UUID
	AnonymousId  string       `json:"anonymousId,omitempty"`
	UserId       string       `json:"userId,omitempty"`
	Name         string       `json:"name,omitempty"`
	Timestamp    time.Time    `json:"timestamp,omitempty"` // when it happened; zero means now
	Context      *Context     `json:"context,omitempty"`
	Properties   Properties   `json:"properties,omitempty"`
	Integrations Integrations `json:"integrations,omitempty"`
}

// Screen records that a user saw a screen of an app. UserId or AnonymousId is required.
type Screen struct {
	Type         string       `json:"type,omitempty"`      // set by the library
	MessageId    string       `json:"messageId,omitempty"` // at most 99 characters; empty means a random UUID
	AnonymousId  string       `json:"anonymousId,omitempty"`
	UserId       string       `json:"userId,omitempty"`
	Name         string       `json:"name,omitempty"`
	Timestamp    time.Time    `json:"timestamp,omitempty"` // when it happened; zero means now
	Context      *Context     `json:"context,omitempty"`
	Properties   Properties   `json:"properties,omitempty"`
	Integrations Integrations `json:"integrations,omitempty"`
}

// Group ties a user to a group. GroupId is required, and UserId or AnonymousId.
type Group struct {
	Type         string       `json:"type,omitempty"`      // set by the library
	MessageId    string       `json:"messageId,omitempty"` // at most 99 characters; empty means a random UUID
	AnonymousId  string       `json:"anonymousId,omitempty"`
	UserId       string       `json:"userId,omitempty"`
	GroupId      string       `json:"groupId"`
	Timestamp    time.Time    `json:"timestamp,omitempty"` // when it happened; zero means now
	Context      *Context     `json:"context,omitempty"`
	Traits       Traits       `json:"traits,omitempty"`
	Integrations Integrations `json:"integrations,omitempty"`
}

// Alias says that PreviousId and UserId are the same user. Both are required.
type Alias struct {
	Type         string       `json:"type,omitempty"`      // set by the library
	MessageId    string       `json:"messageId,omitempty"` // at most 99 characters; empty means a random UUID
	PreviousId   string       `json:"previousId"`
	UserId       string       `json:"userId"`
	Timestamp    time.Time    `json:"timestamp,omitempty"` // when it happened; zero means now
	Context      *Context     `json:"context,omitempty"`
	Integrations Integrations `json:"integrations,omitempty"`
}

// Validate implements [Message].
func (msg Identify) Validate() error {
	return required("Identify", "UserId", cmp.Or(msg.UserId, msg.AnonymousId))
}

// Validate implements [Message].
func (msg Track) Validate() error {
	return required("Track", "Event", msg.Event, "UserId", cmp.Or(msg.UserId, msg.AnonymousId))
}

// Validate implements [Message].
func (msg Page) Validate() error {
	return required("Page", "UserId", cmp.Or(msg.UserId, msg.AnonymousId))
}

// Validate implements [Message].
func (msg Screen) Validate() error {
	return required("Screen", "UserId", cmp.Or(msg.UserId, msg.AnonymousId))
}

// Validate implements [Message].
func (msg Group) Validate() error {
	return required("Group", "GroupId", msg.GroupId, "UserId", cmp.Or(msg.UserId, msg.AnonymousId))
}

// Validate implements [Message].
func (msg Alias) Validate() error {
	return required("Alias", "UserId", msg.UserId, "PreviousId", msg.PreviousId)
}

// required returns a FieldError for the first empty field, or nil. fields alternates names
// and values.
func required(kind string, fields ...string) error {
	for i := 0; i < len(fields); i += 2 {
		if fields[i+1] == "" {
			return FieldError{Type: "analytics." + kind, Name: fields[i], Value: ""}
		}
	}
	return nil
}

// A FieldGetter is a message of a type that this package does not define. GetField
// returns its fields by their keys in the tracking API: "type", "userId" and so on.
type FieldGetter interface {
	GetField(field string) (any, bool)
}

// ValidateFields returns a FieldError for the first field that the type of the message requires and
// the message lacks. A value that is not a string counts as missing.
func ValidateFields(msg FieldGetter) error {
	text := func(key string) string {
		v, _ := msg.GetField(key)
		s, _ := v.(string)
		return s
	}
	kind, _ := msg.GetField("type")
	switch kind {
	case "identify":
		return Identify{UserId: text("userId"), AnonymousId: text("anonymousId")}.Validate()
	case "track":
		return Track{UserId: text("userId"), AnonymousId: text("anonymousId"), Event: text("event")}.Validate()
	case "page":
		return Page{UserId: text("userId"), AnonymousId: text("anonymousId")}.Validate()
	case "screen":
		return Screen{UserId: text("userId"), AnonymousId: text("anonymousId")}.Validate()
	case "group":
		return Group{UserId: text("userId"), AnonymousId: text("anonymousId"), GroupId: text("groupId")}.Validate()
	case "alias":
		return Alias{UserId: text("userId"), PreviousId: text("previousId")}.Validate()
	}
	return FieldError{Type: "analytics.Event", Name: "Type", Value: kind}
}

// convert returns three values: m with its type, id and time filled in, the id of m, and a
// function that queues m. m must be a message of this package, not a pointer.
func (c *client) convert(m Message) (Message, string, func() error) {
	switch m := m.(type) {
	case Identify:
		at := stamp(&m.Type, "identify", &m.MessageId, &m.Timestamp)
		sent := &root.Identify{UserId: m.UserId, AnonymousId: m.AnonymousId, Traits: m.Traits,
			Context: c.merged(m.Context), Integrations: m.Integrations, Timestamp: at, MessageId: m.MessageId}
		return m, m.MessageId, func() error { return c.sender.Identify(sent) }
	case Track:
		at := stamp(&m.Type, "track", &m.MessageId, &m.Timestamp)
		sent := &root.Track{UserId: m.UserId, AnonymousId: m.AnonymousId, Event: m.Event, Properties: m.Properties,
			Context: c.merged(m.Context), Integrations: m.Integrations, Timestamp: at, MessageId: m.MessageId}
		return m, m.MessageId, func() error { return c.sender.Track(sent) }
	case Page:
		at := stamp(&m.Type, "page", &m.MessageId, &m.Timestamp)
		sent := &root.Page{UserId: m.UserId, AnonymousId: m.AnonymousId, Name: m.Name, Properties: m.Properties,
			Context: c.merged(m.Context), Integrations: m.Integrations, Timestamp: at, MessageId: m.MessageId}
		return m, m.MessageId, func() error { return c.sender.Page(sent) }
	case Screen:
		at := stamp(&m.Type, "screen", &m.MessageId, &m.Timestamp)
		sent := &root.Screen{UserId: m.UserId, AnonymousId: m.AnonymousId, Name: m.Name, Properties: m.Properties,
			Context: c.merged(m.Context), Integrations: m.Integrations, Timestamp: at, MessageId: m.MessageId}
		return m, m.MessageId, func() error { return c.sender.Screen(sent) }
	case Group:
		at := stamp(&m.Type, "group", &m.MessageId, &m.Timestamp)
		sent := &root.Group{UserId: m.UserId, AnonymousId: m.AnonymousId, GroupId: m.GroupId, Traits: m.Traits,
			Context: c.merged(m.Context), Integrations: m.Integrations, Timestamp: at, MessageId: m.MessageId}
		return m, m.MessageId, func() error { return c.sender.Group(sent) }
	case Alias:
		at := stamp(&m.Type, "alias", &m.MessageId, &m.Timestamp)
		sent := &root.Alias{UserId: m.UserId, PreviousId: m.PreviousId,
			Context: c.merged(m.Context), Integrations: m.Integrations, Timestamp: at, MessageId: m.MessageId}
		return m, m.MessageId, func() error { return c.sender.Alias(sent) }
	}
	panic("analytics: dereferenced lets no other message through")
}

// stamp sets the type, and the id and the time if they are missing. It returns the time as text. In
// the id it replaces invalid UTF-8, which JSON cannot hold, so that settle finds the message by the
// id that was sent.
func stamp(typ *string, kind string, id *string, at *time.Time) string {
	*typ = kind
	*id = strings.ToValidUTF8(*id, "\uFFFD")
	if *id == "" {
		*id = string(uuid.Append(nil))
	}
	if at.IsZero() {
		*at = time.Now()
	}
	return root.FormatTime(*at)
}

// merged returns the context of a message. Members that the message does not set come from
// the default context.
func (c *client) merged(own *Context) map[string]any {
	if own == nil {
		return c.context
	}
	m := own.members()
	if len(c.context) == 0 {
		return m
	}
	all := maps.Clone(c.context)
	maps.Copy(all, m)
	return all
}

// messageID returns the messageId of a message in the form in which it was sent.
func messageID(text []byte) string {
	var m struct {
		ID string `json:"messageId"`
	}
	_ = json.Unmarshal(text, &m) // the root package wrote the text, so it is valid
	return m.ID
}
