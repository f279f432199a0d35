package main

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
)

// TestStatusSaysWhy lists destinations that do not take their deliveries.
func TestStatusSaysWhy(t *testing.T) {
	now := time.Date(2026, 11, 21, 22, 40, 0, 0, time.UTC)
	at := func(d time.Duration) *time.Time { t := now.Add(d); return &t }
	failed := func(try, status int, reason, text string, due *time.Time) *api.Failure {
		a := api.Attempt{At: now.Add(-3 * time.Second), Try: try, Status: status, Reason: reason, Answer: text}
		if status == 0 {
			a.Answer, a.Error = "", text
		}
		return &api.Failure{ID: "m1", Attempt: a, Due: due}
	}
	for _, tt := range []struct {
		name string
		of   api.Destination
		want []string
	}{
		{"well", api.Destination{State: api.StateOK, Failure: failed(1, 503, "server_error", "busy", at(-time.Second))}, nil},
		{"nothing sent", api.Destination{State: api.StateIdle}, nil},
		{"refused", api.Destination{State: api.StateRefusing, Failure: failed(1, 422, "refused", "{\n  \"error\": \"unknown plan\"\n}\n", nil)},
			[]string{`422 Unprocessable Entity: { "error": "unknown plan" }`, "try 1, 3s ago, given up"}},
		{"refused without a word", api.Destination{State: api.StateRefusing, Failure: failed(1, 404, "refused", "", nil), Next: at(time.Minute)},
			[]string{"404 Not Found", "try 1, 3s ago, given up"}},
		{"HTML that is cut", api.Destination{State: api.StateRefusing, Failure: failed(1, 403, "refused", "<!DOCTYPE html>\n<html><head><title>403 Forbidden</title></head>\n<body cla", nil)},
			[]string{"403 Forbidden: 403 Forbidden", "try 1, 3s ago, given up"}},
		{"a status without a name", api.Destination{State: api.StateRefusing, Failure: failed(1, 499, "refused", "\x1b[31mno", nil)},
			[]string{`499: \x1b[31mno`, "try 1, 3s ago, given up"}},
		{"tried again", api.Destination{State: api.StateRetrying, Failure: failed(2, 503, "server_error", "come back later", at(8*time.Second)), Next: at(time.Second)},
			[]string{"503 Service Unavailable: come back later", "try 2, 3s ago, next attempt in 8s"}},
		{"no answer", api.Destination{State: api.StateRetrying, Failure: failed(1, 0, "timeout", "no answer within 5s", at(time.Second))},
			[]string{"timeout: no answer within 5s", "try 1, 3s ago, next attempt in 1s"}},
		{"held", api.Destination{State: api.StateFailing, Failure: failed(5, 503, "server_error", "busy", at(time.Hour)),
			Held: &api.Held{Hold: "failing", Since: at(-2 * time.Minute), Until: at(12 * time.Second), Reason: "server_error"}},
			[]string{"503 Service Unavailable: busy", "try 5, 3s ago, since 2m0s, next attempt in 12s"}},
		{"held, of an older server", api.Destination{State: api.StateFailing, Held: &api.Held{Hold: "failing", Until: at(12 * time.Second), Reason: "server_error"}},
			[]string{"server_error, next attempt in 12s"}},
		{"given up in the end", api.Destination{State: api.StateFailing, Failure: failed(31, 0, "connection", "connection refused", nil)},
			[]string{"connection: connection refused", "try 31, 3s ago, given up"}},
		{"disabled", api.Destination{State: "disabled", Held: &api.Held{Hold: "disabled", Until: at(26 * time.Second)}}, []string{"looked up again in 26s"}},
		{"paused", api.Destination{State: "paused", Failure: failed(1, 503, "server_error", "busy", nil), Held: &api.Held{Hold: "paused", Since: at(-5 * time.Minute)}},
			[]string{"since 5m0s"}},
	} {
		if diff := cmp.Diff(tt.want, why(tt.of, now)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}
