package store_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/hookferry/analytics/webhook/store"
)

// Close waits for the calls that have begun. After Close no call can begin.
func TestGateCloseWaitsForCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g store.Gate
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := g.Enter(ended); !errors.Is(err, context.Canceled) {
			t.Errorf("Enter with a cancelled context = %v, want context.Canceled", err)
		}
		for range 2 {
			if err := g.Enter(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		closed := make(chan bool)
		go func() { closed <- g.Close() }()
		for range 2 {
			synctest.Wait()
			select {
			case <-closed:
				t.Fatal("Close returned, want it to wait for the calls")
			default:
			}
			if err := g.Enter(t.Context()); err != store.ErrClosed {
				t.Errorf("Enter after Close = %v, want ErrClosed", err)
			}
			if g.Close() {
				t.Error("second Close = true, want false")
			}
			g.Leave()
		}
		if !<-closed {
			t.Error("first Close = false, want true")
		}
	})
}
