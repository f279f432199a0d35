package webhook_test

import (
	"context"
	"iter"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/step"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/store"
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

// A slowNode is a node of a store that takes time to count, so that the looks of two forwarders overlap.
type slowNode struct{ *node }

func (n slowNode) CountByDestination(ctx context.Context, only ...string) iter.Seq2[store.DestinationCounts, error] {
	counts := n.node.CountByDestination(ctx, only...)
	return func(yield func(store.DestinationCounts, error) bool) {
		for c, err := range counts {
			time.Sleep(time.Millisecond)
			if !yield(c, err) {
				return
			}
		}
	}
}

func (n slowNode) Fetch(ctx context.Context, wants []store.Want, maxBytes int64, dst []webhook.Delivery) ([]webhook.Delivery, error) {
	time.Sleep(time.Millisecond)
	return n.node.Fetch(ctx, wants, maxBytes, dst)
}

// Two forwarders on one store bury what exceeds the bounds once, no more than needed, and each counts
// what it has buried.
func TestTwoNodesBoundBacklog(t *testing.T) {
	const each = 600 // bytes of a delivery in memqueue, about
	for _, tt := range []struct {
		name   string
		n      int // deliveries of each key
		keys   []string
		config webhook.Config
	}{
		{"bytes", 2000, []string{""}, webhook.Config{BacklogMaxBytes: 500 * each}},
		{"bytes, a little", 300, []string{""}, webhook.Config{BacklogMaxBytes: 250 * each}},
		{"bytes, with keys", 500, []string{"a", "b", "c"}, webhook.Config{BacklogMaxBytes: 500 * each}},
		{"age", 700, []string{"", "a"}, webhook.Config{BacklogMaxAge: 5 * time.Hour}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, a *rig) {
				a.network.Receiver(hook, "", step.Answer(503))
				b := &rig{t: t, network: a.network, queue: slowNode{newNode(a.queue)}}
				a.queue = slowNode{newNode(a.queue)}
				tt.config.Destinations = crm(hook)
				a.start(tt.config)
				b.start(tt.config)
				defer b.stop()
				must(t, a.Pause(t.Context(), "crm"))
				must(t, a.ForwardEvents(t.Context(), []string{"crm"}, keyed(tt.n, tt.keys...)...))
				time.Sleep(2*tt.config.BacklogMaxAge + 5*time.Minute)
				synctest.Wait()
				dead := make(map[string]bool)
				for _, d := range a.dead() {
					dead[d.ID] = true
				}
				n, c, most := tt.n*len(tt.keys), a.counts(), tt.config.BacklogMaxBytes
				bytes := int64(0)
				for c := range a.queue.CountByDestination(t.Context()) {
					bytes = c.Bytes
				}
				if bytes > most || bytes < most-2*each || c.Dead+c.Waiting != n || len(dead) != c.Dead {
					t.Errorf("%d deliveries wait, with %d bytes, and %d of %d dead letters differ; want no more than %d bytes, and all %d", c.Waiting, bytes, len(dead), c.Dead, most, n)
				}
				of := func(r *rig) int64 { return r.Stats().Dead[webhook.ReasonBacklog] }
				if of(a)+of(b) != int64(c.Dead) {
					t.Errorf("the forwarders count %d and %d dead letters, want %d", of(a), of(b), c.Dead)
				}
			})
		})
	}
}

// The lease of a forwarder that has died ends by itself. One from before the clock was set back does not
// count.
func TestLeaseEnds(t *testing.T) {
	for _, tt := range []struct {
		name              string
		lasts, kept, gone time.Duration // the backlog is there after kept, and gone after gone
	}{
		{"after a minute", time.Minute, 59 * time.Second, 75 * time.Second},
		{"with the clock", 2 * time.Minute, 9 * time.Second, 11 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *rig) {
				until, _ := time.Now().Add(tt.lasts).MarshalText()
				_, err := r.queue.SetDocument(t.Context(), store.Document{Folder: "backlog", Name: "crm", Value: until})
				must(t, err)
				r.start(webhook.Config{BacklogMaxBytes: 1, Destinations: crm(hook)})
				must(t, r.Pause(t.Context(), "crm"))
				r.track("1")
				time.Sleep(tt.kept)
				if c := r.counts(); c.Dead > 0 {
					t.Errorf("a dead letter after %v, while another forwarder has the lease", tt.kept)
				}
				time.Sleep(tt.gone - tt.kept)
				if c := r.counts(); c.Dead != 1 {
					t.Errorf("no dead letter after %v", tt.gone)
				}
				for d := range r.queue.Documents(t.Context(), "backlog", "") {
					t.Errorf("the document of the lease of %s is left", d.Name)
				}
			})
		})
	}
}
