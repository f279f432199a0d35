package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"

	"github.com/hookferry/analytics/webhook"
)

// TestEventsSaysWhatHappened shows the line of each kind of event.
func TestEventsSaysWhatHappened(t *testing.T) {
	at := time.Date(2026, 11, 21, 22, 40, 0, 5e6, time.Local)
	attempt := webhook.Attempt{Took: ms(12.3), Try: 2, Endpoint: "http://a.example/hook", Status: 204}
	failed := attempt
	failed.Status, failed.Reason, failed.Answer = 503, "server_error", "busy\x1b"
	for _, tt := range []struct {
		event api.Event
		want  string
	}{
		{api.Event{Kind: "accepted"}, "accepted   acme  track  m1"},
		{api.Event{Kind: "attempt", Outcome: "delivered", Attempt: &attempt},
			"attempt    acme  track  m1  try 2  http://a.example/hook  204 No Content in 12ms"},
		{api.Event{Kind: "attempt", Outcome: "retryable", Attempt: &failed, Due: at.Add(8 * time.Second)},
			`attempt    acme  track  m1  try 2  http://a.example/hook  503 Service Unavailable: busy\x1b in 12ms  retryable server_error, again in 8s`},
		{api.Event{Kind: "delivered"}, "delivered  acme  track  m1"},
		{api.Event{Kind: "dead", Reason: "refused"}, "dead       acme  track  m1  refused"},
	} {
		tt.event.At, tt.event.Names = at, api.Names{Destination: "acme", ID: "m1", Type: "track"}
		var out strings.Builder
		writeLive(screen{Writer: &out}, api.Live{Event: &tt.event}, false)
		if diff := cmp.Diff("22:40:00.005  "+tt.want+"\n", out.String()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.event.Kind, diff)
		}
	}
}
