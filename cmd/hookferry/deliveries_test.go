package main

import (
	"testing"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"

	"github.com/hookferry/analytics/webhook"
)

// A dead letter without an attempt says so.
func TestLastAnswerSaysThatNoAttemptWasMade(t *testing.T) {
	now := time.Now()
	for _, tt := range []struct {
		d    api.Delivery
		want string
	}{
		{api.Delivery{Reason: "expired", Ended: now}, "no attempt was made"},
		{api.Delivery{Ended: now}, "-"},
		{api.Delivery{}, "-"},
		{api.Delivery{Reason: "expired", Ended: now, Attempts: []webhook.Attempt{{Status: 503, Answer: "busy"}}}, "503 Service Unavailable: busy"},
	} {
		if got := lastAnswer(tt.d, normal).text; got != tt.want {
			t.Errorf("%+v: got %q, want %q", tt.d, got, tt.want)
		}
	}
}
