package event

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hookferry/analytics/internal/esjson"
)

func TestDeleteEvents(t *testing.T) {
	at := time.Date(2026, 3, 1, 13, 0, 0, 1e6, time.FixedZone("", 3600))
	for _, tt := range []struct{ name, userID, want string }{
		{"plain", "u1", `{"type":"delete","userId":"u1","timestamp":"2026-03-01T12:00:00.001Z"}`},
		{"not ASCII", "é<\u2028\x01\xff", `{"type":"delete","userId":"é<` + "\u2028" + `\u0001` + "\ufffd" + `","timestamp":"2026-03-01T12:00:00.001Z"}`},
		{"the largest", strings.Repeat("u", MaxUserID), `{"type":"delete","userId":"` + strings.Repeat("u", MaxUserID) + `","timestamp":"2026-03-01T12:00:00.001Z"}`},
	} {
		e, err := Delete(tt.userID, at)
		if err != nil {
			t.Errorf("%s: Delete: %v", tt.name, err)
			continue
		}
		if string(e.Body) != tt.want || e.Type != "delete" || e.Off || !e.Received.Equal(at) || len(e.ID) != 36 {
			t.Errorf("%s: Delete = %+v, body %s, want %s", tt.name, e, e.Body, tt.want)
		}
		if again, err := esjson.Append(nil, e.Body); err != nil || string(again) != string(e.Body) {
			t.Errorf("%s: the body is encoded again as %s, %v, want the same", tt.name, again, err)
		}
	}
	for _, tt := range []struct {
		name, userID string
		code         Code
	}{
		{"empty", "", CodeMissing},
		{"too large", strings.Repeat("u", MaxUserID+1), CodeTooLarge},
	} {
		var ce *CallError
		if _, err := Delete(tt.userID, at); !errors.As(err, &ce) || ce.Code != tt.code || ce.Field != "userId" {
			t.Errorf("%s: Delete: %v, want the code %s for userId", tt.name, err, tt.code)
		}
	}
}
