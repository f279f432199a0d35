// Package event turns calls into events, whose bodies are sent as webhooks. A call is a message of
// the root package, or the JSON that clients of the HTTP tracking API send.
//
//	var encoder event.Encoder
//	e, err := encoder.Encode(&analytics.Track{UserId: "u1", Event: "Signed Up"})
//	e, err = encoder.Encode(event.JSON(`{"type":"track","userId":"u1","event":"Signed Up"}`))
//
// webhook.Forwarder.Forward takes messages and makes the events itself. ForwardEvents takes events
// that the caller has made with this package. The error for a wrong call is a *[CallError].
package event

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"time"

	"github.com/hookferry/analytics/internal/esjson"
	"github.com/hookferry/analytics/internal/uuid"
)

// An Event is a call that is ready to be forwarded. All endpoints of all destinations get the same
// body. Events do not change, so they may be shared.
//
// ID, Source, User and Name have up to 255 bytes. Longer ones become "sha256:" and a hex SHA-256.
type Event struct {
	// ID is the call's messageId, or its digest if it has lone surrogates. A destination gets each ID
	// of a Source once.
	ID string
	// Source is the Source of the Envelope. Events of different sources are different even with the
	// same ID.
	Source string
	// User is the call's userId, empty if it has none. For an alias it is the new user id.
	User string
	Name string // of the event of a track, or of a page or a screen
	Key  string // see Custom
	Type string // "identify", "track", "page", "screen", "group", "alias", "delete", or that of a Custom
	// Body is the webhook's body, as ECMAScript's JSON.stringify makes it, or nil if the event is Off.
	Body     []byte
	Received time.Time // when the call came in; the body has it as "receivedAt"
	BadTime  bool      // a time of the call could not be read, and counts as missing
	Off      bool      // the call's integrations switch Webhooks off, so the event is not forwarded
	// NoDedup keeps the ID out of the dedup window: the event is forwarded even if an event with
	// its ID was forwarded before, and the store does not remember the ID. It is for large numbers
	// of events that are never sent twice.
	NoDedup bool
	// An Unfiltered event bypasses the filters and Transforms of destinations. Unfiltered is for
	// events that a destination must get, such as those of package audience.
	Unfiltered bool

	made bool // by this package, so that Check need not look at the Body
}

const MaxUserID = 8 << 10 // bytes of the user id of a deletion

// Delete returns the event that asks a destination to delete a user, at the time of the request.
// The body has type, userId and timestamp. The error is a *CallError for a user id that does not
// have 1 to MaxUserID bytes.
func Delete(userID string, at time.Time) (Event, error) {
	if userID == "" {
		return Event{}, &CallError{Field: "userId", Code: CodeMissing, Problem: "is required"}
	}
	if len(userID) > MaxUserID {
		return Event{}, &CallError{Field: "userId", Code: CodeTooLarge, Problem: "has more than 8192 bytes"}
	}
	b := make([]byte, 0, len(`{"type":"delete","userId":"","timestamp":"2006-01-02T15:04:05.000Z"}`)+len(userID))
	b = esjson.AppendString(append(b, `{"type":"delete","userId":`...), userID)
	b = append(appendTime(append(b, `,"timestamp":`...), at), '}')
	return Event{ID: string(uuid.Append(nil)), User: label(userID), Type: "delete", Body: b, Received: at, made: true}, nil
}

// labels returns the ID, the User and the Name of the event, in one allocation. The ID is a digest
// if the messageId has lone surrogates: in UTF-8 they all become the same character, so two
// messageIds that a receiver tells apart could get the same ID.
func (c *fields) labels() (id, user, name string) {
	b, start := *c.forms, len(*c.forms)
	if id := c.v[messageID]; bytes.Contains(id, []byte(`\ud`)) { // or an escaped backslash before "ud"
		b = appendDigest(b, id)
	} else {
		b = appendLabel(b, id)
	}
	idEnd := len(b) - start
	b = appendLabel(b, c.v[userID])
	userEnd := len(b) - start
	b = appendLabel(b, c.v[eventName])
	b = appendLabel(b, c.v[pageName]) // no call has both names
	*c.forms = b
	text := string(b[start:])
	return text[:idEnd], text[idEnd:userEnd], text[userEnd:]
}

// appendLabel appends the text of a string of a parsed call, or its digest if it has more than
// maxLabel bytes. If value is nil, it appends nothing.
func appendLabel(dst, value []byte) []byte {
	b := appendText(dst, value)
	if text := b[len(dst):]; len(text) > maxLabel {
		return appendDigest(b[:len(dst)], text) // the array of b is reused, which may be larger
	}
	return b
}

const maxLabel = 255 // bytes of the longest ID, Source, User or Name

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
