package main

import (
	"bytes"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"

	"github.com/hookferry/analytics/webhook"
)

// A dead letter without an attempt says so.
func TestLastAnswerSaysThatNoAttemptWasMade(t *testing.T) {
	for _, tt := range []struct {
		d    api.Delivery
		want string
	}{
		{api.Delivery{State: webhook.StateDead}, "no attempt was made"},
		{api.Delivery{State: webhook.StateWaiting}, "-"},
		{api.Delivery{State: webhook.StateDead, Attempts: []webhook.Attempt{{Status: 503, Answer: "busy"}}}, "503 Service Unavailable: busy"},
	} {
		if got := lastAnswer(tt.d).text; got != tt.want {
			t.Errorf("%+v: got %q, want %q", tt.d, got, tt.want)
		}
	}
}

// TestListGoesOnThroughShortPages shows that a list asks for the next page even after an empty one,
// and says after listTime how to go on.
func TestListGoesOnThroughShortPages(t *testing.T) {
	pages := 0
	inMemory(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(listTime / 3)
		pages++
		fmt.Fprintf(w, `{"items":[],"after":"k%d"}`, pages)
	}), func(t *testing.T, url string, p process) {
		var out, errs bytes.Buffer
		p.stdout, p.stderr = &out, &errs
		status := run(t.Context(), []string{"deliveries", "ls", "--user", "u1", "--admin", url}, p)
		if want := "The list ends here, after 30s; --after k4 goes on.\n"; status != exitOK || errs.String() != want {
			t.Errorf("exit status %d, %q, want %q", status, errs.String(), want)
		}
	})
}
