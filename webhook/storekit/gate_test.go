package storekit_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/storekit"
)

// Close waits for the calls that have begun, and none begins after it.
func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g storekit.Gate
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := g.Enter(ended); !errors.Is(err, context.Canceled) {
			t.Errorf("Enter with a context that has ended = %v", err)
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
				t.Fatal("Close has not waited for a call")
			default:
			}
			if err := g.Enter(t.Context()); err != webhook.ErrClosed {
				t.Errorf("Enter after Close = %v, want ErrClosed", err)
			}
			if g.Close() {
				t.Error("a second Close takes itself for the first")
			}
			g.Leave()
		}
		if !<-closed {
			t.Error("the first Close = false")
		}
	})
}
