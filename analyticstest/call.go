package analyticstest

import (
	"encoding/json"
	"errors"
	"time"
)

// A Call is one call as the server received it. Fields that the call does not have are
// zero. Maps are decoded by encoding/json: numbers are float64, lists []any, objects
// map[string]any, and times are strings.
type Call struct {
	Type         string // "identify", "track", "page", "screen", "group" or "alias"
	MessageId    string
	Timestamp    time.Time // UTC, in milliseconds; zero if it is missing or a collector would not accept it
	UserId       string
	AnonymousId  string
	PreviousId   string         // only in an alias
	GroupId      string         // only in a group
	Event        string         // only in a track
	Name         string         // only in a page or a screen
	Category     string         // only in a page
	Properties   map[string]any // only in a track, a screen or a page
	Traits       map[string]any // only in an identify or a group
	Context      map[string]any // the context of the call itself; see also Batch.Context
	Integrations map[string]any

	WriteKey string // the write key of the batch
	JSON     []byte // the call as it was received
}

// newCall decodes a call. It returns an error for a field of the wrong type, and ignores
// unknown fields.
func newCall(raw json.RawMessage) (Call, error) {
	var c struct {
		Type         string          `json:"type"`
		MessageID    string          `json:"messageId"`
		Timestamp    json.RawMessage `json:"timestamp"`
		UserID       string          `json:"userId"`
		AnonymousID  string          `json:"anonymousId"`
		PreviousID   string          `json:"previousId"`
		GroupID      string          `json:"groupId"`
		Event        string          `json:"event"`
		Name         string          `json:"name"`
		Category     string          `json:"category"`
		Properties   map[string]any  `json:"properties"`
		Traits       map[string]any  `json:"traits"`
		Context      map[string]any  `json:"context"`
		Integrations map[string]any  `json:"integrations"`
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return Call{}, err
	}
	if c.Type == "" {
		return Call{}, errors.New("the call has no type")
	}
	return Call{
		Type:         c.Type,
		MessageId:    c.MessageID,
		Timestamp:    parseTime(c.Timestamp),
		UserId:       c.UserID,
		AnonymousId:  c.AnonymousID,
		PreviousId:   c.PreviousID,
		GroupId:      c.GroupID,
		Event:        c.Event,
		Name:         c.Name,
		Category:     c.Category,
		Properties:   c.Properties,
		Traits:       c.Traits,
		Context:      c.Context,
		Integrations: c.Integrations,
		JSON:         raw,
	}, nil
}
