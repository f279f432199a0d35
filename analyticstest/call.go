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
	// encoding/json matches keys in any case. So a key such as "json" would set the field JSON of
	// Call. The fields beside Call prevent that: they hide the fields of Call with the same names.
	var c struct {
		Call
		Timestamp, WriteKey, JSON json.RawMessage
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return Call{}, err
	}
	if c.Type == "" {
		return Call{}, errors.New("the call has no type")
	}
	c.Call.Timestamp, c.Call.JSON = parseTime(c.Timestamp), raw
	return c.Call, nil
}
