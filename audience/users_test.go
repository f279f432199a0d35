package audience

import (
	"context"
	"errors"
	"testing"

	"github.com/hookferry/analytics/webhook"
)

// Once a context has ended nothing more is stored, even by a store that ignores the context:
// a list that ended with it is not whole.
func TestBackpressureEndsWithItsContext(t *testing.T) {
	for _, tt := range []struct {
		name  string
		after int // calls of the store
	}{
		{"before the first", 0},
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
		p := newBackpressure()
		err := p.wait(ctx, func(int) error {
			calls++
			until()
			if calls > tt.after {
				return nil
			}
			return webhook.ErrQueueFull
		})
		if !errors.Is(err, context.Canceled) || calls != tt.after {
			t.Errorf("%s: %v after %d calls of the store, want the context's error after %d", tt.name, err, calls, tt.after)
		}
	}
}
