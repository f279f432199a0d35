package webhook_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/step"
	"github.com/hookferry/analytics/webhook"
)

// When the Directory says that a destination takes nothing, its waiting deliveries become dead
// letters without a request, for whatever reason it was held. Once it has an endpoint, it gets its
// events as before.
func TestDeliveriesOfADestinationThatTakesNothingAreGivenUp(t *testing.T) {
	off := crm(hook)[0]
	off.Disabled = true
	for _, tt := range []struct {
		name   string
		before *webhook.Destination
		err    error
	}{
		{"from the start", nil, fmt.Errorf("tenant: %w", webhook.ErrTakesNothing)},
		{"unknown before", nil, webhook.ErrUnknownDestination},
		{"disabled before", &off, nil},
		{"the look-up failed before", nil, errAway},
		{"failing before", &crm("http://down.example/")[0], nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *rig) {
				recv := r.network.Receiver(hook, "")
				r.network.Receiver("http://down.example/", "", step.Refuse())
				type answer struct {
					d   *webhook.Destination
					err error
				}
				var now atomic.Pointer[answer]
				now.Store(&answer{tt.before, tt.err})
				r.start(webhook.Config{Directory: attempted(func(context.Context, string) (*webhook.Destination, error) {
					a := now.Load()
					return a.d, a.err
				})})
				const n = 300
				for i := range n {
					r.track(fmt.Sprint("m", i))
				}
				time.Sleep(20 * time.Minute)
				now.Store(&answer{nil, fmt.Errorf("tenant: %w", webhook.ErrTakesNothing)})
				r.Recheck("", "crm")
				time.Sleep(time.Second)
				synctest.Wait()
				// The deliveries that were attempted while the destination failed keep their schedule.
				if c := r.counts(); c.Waiting > 40 || tt.name != "failing before" && c.Waiting > 0 || len(r.Held()) != 0 {
					t.Errorf("after a second the store has %+v, Held() = %+v; want none waiting or held", c, r.Held())
				}
				time.Sleep(10 * time.Minute)
				synctest.Wait()
				if s := r.Stats(); s.Dead[webhook.ReasonNoEndpoint] != n || len(r.dead()) != n {
					t.Errorf("got the dead letters %v, want %d with the reason %q", s.Dead, n, webhook.ReasonNoEndpoint)
				}
				r.track("later") // is stored, as by a node that has kept an answer
				time.Sleep(time.Second)
				synctest.Wait()
				if s := r.Stats(); s.Dead[webhook.ReasonNoEndpoint] != n+1 || s.Filtered != 0 || len(recv.Requests()) != 0 {
					t.Errorf("Stats() = %+v with %d requests, want %d given up and no request", s, len(recv.Requests()), n+1)
				}
				now.Store(&answer{&crm(hook)[0], nil})
				r.track("taken")
				if _, err := last(r.RetryAll(t.Context(), webhook.Query{Reason: webhook.ReasonNoEndpoint})); err != nil {
					t.Error(err)
				}
				time.Sleep(time.Second)
				synctest.Wait()
				if s := r.Stats(); s.Delivered != n+2 {
					t.Errorf("got %d deliveries once the destination has an endpoint, want %d", s.Delivered, n+2)
				}
			})
		})
	}
}

// Nothing is stored for a destination that takes nothing, not even events to which filters do not
// apply. Other destinations of the call get their deliveries.
func TestNothingIsStoredForADestinationThatTakesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.queue = newOutbox()
		r.network.Receiver(hook, "")
		r.start(webhook.Config{Directory: lookup(func(_ context.Context, id string) (*webhook.Destination, error) {
			if id == "gone" {
				return nil, fmt.Errorf("tenant: %w", webhook.ErrTakesNothing)
			}
			return &crm(hook)[0], nil
		})})
		e, err := new(event.Encoder).Encode(&analytics.Track{UserId: "u1", Event: "E", MessageId: "m"})
		must(t, err)
		deletion, ids := e, []string{"gone", "crm"}
		deletion.Type, deletion.ID, deletion.Unfiltered = "delete", "d", true
		for name, err := range map[string]error{
			"Forward":         r.Forward(t.Context(), "gone", call("1"), call("2")),
			"ForwardEvents":   r.ForwardEvents(t.Context(), ids, e),
			"an Unfiltered":   r.ForwardEvents(t.Context(), ids, deletion),
			"ForwardTx":       r.ForwardTx(t.Context(), "tx", "gone", call("3")),
			"ForwardEventsTx": r.ForwardEventsTx(t.Context(), "tx", []string{"gone"}, e),
		} {
			if err != nil {
				t.Errorf("%s = %v, want nil", name, err)
			}
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if s, c := r.Stats(), r.counts(); s.Filtered != 6 || s.Delivered != 2 || s.InTransaction != 0 || c.Waiting+c.Dead != 0 {
			t.Errorf("Stats() = %+v, the store has %+v; want 6 filtered, 2 delivered, nothing waiting or dead", s, c)
		}
	})
}
