//go:build !race

// With the race detector, sync.Pool drops items at random. So allocations are only counted without
// it.

package webhook_test

import (
	"context"
	"testing"

	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/webhook"
)

// ForwardEventsTx allocates once, and once more for each event that has a source. The number of
// destinations, their filters and the Transform of another destination add no allocation.
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
			events[i] = event.Event{ID: "m1", Source: tt.source, Type: "track", Body: []byte("{}")}
		}
		destinations := []string{"a", "b"}
		if n := testing.AllocsPerRun(200, func() {
			must(t, f.ForwardEventsTx(t.Context(), "tx", destinations, events...))
		}); n > tt.want {
			t.Errorf("source %q: ForwardEventsTx allocates %v times, want at most %v", tt.source, n, tt.want)
		}
	}
}
