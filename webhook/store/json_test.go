package store

import (
	"encoding/json"
	"testing"
	"time"
)

func TestAttemptAsJSONHasMilliseconds(t *testing.T) {
	a := Attempt{At: time.Date(2026, 11, 28, 1, 2, 3, 0, time.UTC), Took: Millis(1234567 * time.Microsecond), Try: 2, Endpoint: "https://a.example/", Status: 503, Reason: ReasonServerError}
	text, err := json.Marshal(a)
	if want := `{"at":"2026-11-28T01:02:03Z","took":1234.567,"try":2,"endpoint":"https://a.example/","status":503,"reason":"server_error"}`; string(text) != want || err != nil {
		t.Errorf("Marshal() = %s, %v, want %s", text, err, want)
	}
	var again Attempt
	if err := json.Unmarshal(text, &again); err != nil || again != a {
		t.Errorf("Unmarshal() = %+v, %v, want %+v", again, err, a)
	}
}
