package webhook_test

import (
	"testing"
	"time"

	"github.com/hookferry/analytics/step"
	"github.com/hookferry/analytics/webhook"
)

// The destination always fails. Deliveries that were attempted keep their retry schedule, however
// many new deliveries wait. A delivery becomes a dead letter without an attempt only if it has
// waited for a whole retry window in which the destination failed all the time.
func TestNewDeliveriesDoNotDelayRetries(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		const first, more = 20, 2000
		recv := r.network.Receiver(hook, "shh", step.Answer(503))
		r.start(webhook.Config{Destinations: crm(hook)})
		begin := time.Now()
		r.fill(crm(hook), first)
		time.Sleep(10 * time.Second)
		r.fill(crm(hook), more)
		old := make(map[string]bool)
		for _, q := range recv.Requests() {
			old[string(q.Body)] = true
		}
		time.Sleep(10 * time.Hour)
		tries := make(map[string]int)
		for _, q := range recv.Requests() {
			tries[string(q.Body)]++
		}
		for body := range old {
			if n := tries[body]; n < 30 {
				t.Errorf("a delivery that was attempted early had %d attempts, want at least 30", n)
			}
		}
		for _, d := range r.dead() {
			if d.Tries == 0 && d.At.Sub(begin) < webhook.DefaultWindow {
				t.Errorf("%s became a dead letter after %v without an attempt, want at least %v", d.ID, d.At.Sub(begin), webhook.DefaultWindow)
			}
			if d.Tries > 0 && d.Tries < 30 {
				t.Errorf("%s became a dead letter after %d attempts, want none or at least 30", d.ID, d.Tries)
			}
		}
		if c := r.counts(); c.Waiting != 0 {
			t.Errorf("the store has %+v, want none waiting", c)
		}
		t.Logf("%d of the first %d attempted within ten seconds, %d requests in ten hours", len(old), first, len(recv.Requests()))
	})
}
