package webhook_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hookferry/analytics/webhook"
)

// If an attempt hangs for longer than three times its timeout, its delivery goes back to the store,
// so that another node can attempt it. The attempt keeps its slot.
func TestHangingAttemptReturnsItsDeliveryToTheStore(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		recv := r.network.Receiver(hook, "shh")
		hang := make(chan struct{})
		var calls atomic.Int32
		d := &crm(hook)[0]
		d.MaxConcurrent = 1
		r.start(webhook.Config{Directory: attempted(func(context.Context, string) (*webhook.Destination, error) {
			if calls.Add(1) == 2 {
				<-hang // ignores its context
			}
			return d, nil
		})})
		r.track("0")
		recv.Wait(t.Context(), 1)
		time.Sleep(time.Second) // so that the next attempt asks again
		r.track("1")
		time.Sleep(3 * webhook.DefaultTimeout)
		if c := r.counts(); c.Claimed != 1 {
			t.Errorf("the store has %+v before three timeouts have passed, want 1 claimed", c)
		}
		time.Sleep(2 * webhook.DefaultTimeout)
		if c := r.counts(); c.Claimed != 0 || c.Waiting != 1 {
			t.Errorf("the store has %+v after five timeouts, want 1 waiting and none claimed", c)
		}
		close(hang)
		if _, err := recv.Wait(t.Context(), 2); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if c := r.counts(); c.Waiting != 0 {
			t.Errorf("the store has %+v after the attempt ended, want none waiting", c)
		}
	})
}

// If the first attempt of a delivery hangs, the delivery goes back to the store as a fresh one, and
// the forwarder attempts it again.
func TestDeliveryOfAHangingFirstAttemptIsAttemptedAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		recv := r.network.Receiver(hook, "shh")
		hang := make(chan struct{})
		defer close(hang)
		var calls atomic.Int32
		ds := crm(hook)
		ds[0].Authorize = func(context.Context, string) (map[string]string, error) {
			if calls.Add(1) == 1 {
				<-hang // ignores its context
			}
			return nil, nil
		}
		r.start(webhook.Config{Destinations: ds})
		r.track("1")
		time.Sleep(time.Minute)
		if n, c := len(recv.Requests()), r.counts(); n != 1 || c.Waiting != 0 {
			t.Errorf("got %d requests, and the store has %+v; want 1 request and none waiting", n, c)
		}
	})
}
