package webhook_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/step"
	"github.com/hookferry/analytics/webhook"
)

// What waits for a destination beyond BacklogMaxBytes becomes dead letters, the oldest first, also of
// each key. What is left is delivered when the destination has recovered.
func TestBacklogIsBoundedInBytes(t *testing.T) {
	const each = 600 // bytes of a delivery in memqueue, about
	for _, tt := range []struct {
		name   string
		n      int // deliveries of each key
		keys   []string
		left   int // deliveries, about
		paused bool
	}{
		{"failing", 2000, []string{""}, 100, false},
		{"failing, with keys", 500, []string{"a", "b", "c"}, 100, false},
		{"all have been attempted", 9, []string{""}, 4, false},
		{"paused", 2000, []string{""}, 100, true},
		{"paused, with keys", 500, []string{"a", "b", "c"}, 100, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *rig) {
				recv := r.network.Receiver(hook, "", step.Answer(503))
				d := crm(hook)[0]
				d.Schedule = webhook.SchedulePatient
				r.start(webhook.Config{Destinations: []webhook.Destination{d}, BacklogMaxBytes: int64(tt.left) * each})
				if tt.paused {
					must(t, r.Pause(t.Context(), "crm"))
				}
				must(t, r.ForwardEvents(t.Context(), []string{"crm"}, keyed(tt.n, tt.keys...)...))
				time.Sleep(5 * time.Minute) // a look ends early if what it has released is being attempted
				synctest.Wait()
				dead := r.dead()
				waits := collect(t, r.Deliveries(t.Context(), webhook.Query{States: []webhook.State{webhook.StateWaiting, webhook.StateBehind}}))
				if n := len(waits); n < tt.left*8/10 || n > tt.left || n+len(dead) != tt.n*len(tt.keys) || r.Stats().Dead[webhook.ReasonBacklog] != int64(len(dead)) {
					t.Fatalf("%d deliveries wait, and %d are dead letters by %v; want %d of %d to wait", n, len(dead), r.Stats().Dead, tt.left, tt.n*len(tt.keys))
				}
				for _, w := range waits {
					for _, d := range dead {
						if w.Seq < d.Seq && w.Key == d.Key && (w.Key != "" || w.Tries == d.Tries) {
							t.Fatalf("%s waits, and %s, which is younger, is a dead letter", w.ID, d.ID)
						}
					}
				}
				recv.SetScript(step.Answer(200))
				must(t, r.Resume(t.Context(), "crm"))
				time.Sleep(2 * time.Hour)
				if c := r.counts(); c.Waiting > 0 || c.Dead != len(dead) || r.Stats().Delivered != int64(len(waits)) {
					t.Errorf("after the destination has recovered: %+v, want %d dead letters and %d delivered", c, len(dead), len(waits))
				}
			})
		})
	}
}

// Nothing waits forever: not for a destination that the Directory does not know, nor for a paused one.
func TestBacklogIsBoundedInAge(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		const most = 5 * time.Hour // longer than the retry window
		r.start(webhook.Config{BacklogMaxAge: most, Directory: lookup(func(context.Context, string) (*webhook.Destination, error) { return nil, nil })})
		must(t, r.Pause(t.Context(), "other"))
		both := []string{"crm", "other"}
		must(t, r.ForwardEvents(t.Context(), both, keyed(400, "", "a")...))
		time.Sleep(most - time.Minute)
		must(t, r.ForwardEvents(t.Context(), both, keyed(1, "b")...))
		if c := r.counts(); c.Waiting != 1602 {
			t.Errorf("before their time: %+v, want all to wait", c)
		}
		time.Sleep(2 * time.Hour) // each look may end early, as the forwarder claims some
		synctest.Wait()
		if c := r.counts(); c.Waiting != 2 || c.Dead != 1600 || r.Stats().Dead[webhook.ReasonBacklog] != 1600 {
			t.Errorf("after their time: %+v and %v, want the two youngest to wait", c, r.Stats().Dead)
		}
	})
}
