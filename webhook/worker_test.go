package webhook_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hookferry/analytics/webhook"
)

// A delivery whose attempt hangs beyond three times its time limit goes back to the store,
// where other nodes find it. The attempt keeps its slot.
func TestHangingAttemptReturnsItsDeliveryToTheStore(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		recv := r.network.Receiver(hook, "shh")
		hang := make(chan struct{})
		var calls atomic.Int32
		r.start(webhook.Config{Lookup: func(context.Context, string) (*webhook.Destination, error) {
			if calls.Add(1) == 1 {
				<-hang // does not end with its context
			}
			return &crm(hook)[0], nil
		}})
		r.track("1")
		time.Sleep(3 * webhook.DefaultTimeout)
		if c := r.counts(); c.Claimed != 1 {
			t.Errorf("the store holds %+v within three times the limit", c)
		}
		time.Sleep(2 * webhook.DefaultTimeout)
		if c := r.counts(); c.Claimed != 0 || c.Waiting != 1 {
			t.Errorf("the store holds %+v after it", c)
		}
		close(hang)
		if _, err := recv.Wait(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if c := r.counts(); c.Waiting != 0 {
			t.Errorf("the store holds %+v in the end", c)
		}
	})
}
