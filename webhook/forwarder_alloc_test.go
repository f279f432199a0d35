//go:build !race

// The race detector makes sync.Pool forget at random, so allocations are
// counted without it.

package webhook_test

import (
	"context"
	"testing"

	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/webhook"
)

// A source costs one text for an event, however many destinations it has. A filter costs
// nothing, and neither does a Transform of another destination.
func TestForwardAllocatesOneIDForEachEventOfASource(t *testing.T) {
	endpoints := []webhook.Endpoint{{URL: "http://crm.example/"}}
	f, err := webhook.New(webhook.Config{Store: newOutbox(), Destinations: []webhook.Destination{
		{ID: "a", Endpoints: endpoints, Filter: webhook.Filter{Exclude: []string{"*:Draft *"}}}, {ID: "b", Endpoints: endpoints},
		{ID: "c", Endpoints: endpoints, Transform: func(_ context.Context, e event.Event) (event.Event, error) { return e, nil }},
	}})
	must(t, err)
	for _, tt := range []struct {
		source string
		want   float64
	}{{"", 1}, {"shop", 4}} {
		events := make([]event.Event, 3)
		for i := range events {
			events[i] = event.Event{ID: "m1", Source: tt.source}
		}
		destinations := []string{"a", "b"}
		if n := testing.AllocsPerRun(200, func() {
			must(t, f.ForwardEventsTx(t.Context(), "tx", destinations, events...))
		}); n > tt.want {
			t.Errorf("source %q: ForwardEventsTx allocates %v times, want %v", tt.source, n, tt.want)
		}
	}
}
