package audience

import (
	"context"
	"errors"
	"testing"

	"github.com/hookferry/analytics/webhook"
)

// TestBackpressureStopsWithItsContext shows that inParts calls the store no more once the context has
// ended, even if the store ignores the context. A list that ended with the context is not complete.
func TestBackpressureStopsWithItsContext(t *testing.T) {
	for _, tt := range []struct {
		name  string
		after int // number of calls of the store before the context ends
	}{
		{"before the first call", 0},
		{"while the queue is full", 1},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		calls := 0
		until := func() {
			if calls == tt.after {
				cancel()
			}
		}
		until()
		var p backpressure
		err := inParts(ctx, &p, []string{"u"}, func([]string) error {
			calls++
			until()
			if calls > tt.after {
				return nil
			}
			return webhook.ErrQueueFull
		}, func(int) error { return nil })
		if !errors.Is(err, context.Canceled) || calls != tt.after {
			t.Errorf("%s: %v after %d calls of the store, want the context's error after %d", tt.name, err, calls, tt.after)
		}
	}
}
