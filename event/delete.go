package event

import (
	"time"

	"github.com/hookferry/analytics/internal/esjson"
	"github.com/hookferry/analytics/internal/uuid"
)

// Delete returns the event that asks a destination to delete a user. at is the time of the
// request. The body has type, userId and timestamp. The error is a *CallError for a user id that
// does not have 1 to MaxUserID bytes.
func Delete(userID string, at time.Time) (Event, error) {
	if userID == "" {
		return Event{}, &CallError{Field: "userId", Code: CodeMissing, Problem: "is required"}
	}
	if len(userID) > MaxUserID {
		return Event{}, &CallError{Field: "userId", Code: CodeTooLarge, Problem: "has more than 8192 bytes"}
	}
	var id [36]byte
	b := make([]byte, 0, len(`{"type":"delete","userId":"","timestamp":"2006-01-02T15:04:05.000Z"}`)+len(userID))
	b = append(b, `{"type":"delete","userId":`...)
	b = esjson.AppendString(b, userID)
	b = appendTimeMember(b, `,"timestamp":"`, at)
	return Event{ID: string(uuid.Append(id[:0])), User: label(userID), Type: "delete", Body: append(b, '}'), Received: at}, nil
}

// MaxUserID bounds the user id of a deletion, in bytes.
const MaxUserID = 8 << 10
