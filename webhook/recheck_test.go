package webhook_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hookferry/analytics/step"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/filequeue"
)

// A liveLookup is a LiveDirectory that reports, for each value in missed, that it may have missed changes.
type liveLookup struct {
	lookup
	missed chan struct{}
}

func (d liveLookup) Follow(ctx context.Context, changed func(tenant, destination string)) error {
	for {
		changed("", "")
		select {
		case <-d.missed:
		case <-ctx.Done():
			return nil
		}
	}
}

// A destination that cannot be used gets its deliveries at once when Recheck says that it has
// changed, and within two seconds when a LiveDirectory says that any may have changed, even if a look-up
// that began before the change ends after it.
func TestRecheckEndsAHoldAtOnce(t *testing.T) {
	for _, missed := range []bool{false, true} {
		testRecheck(t, missed)
	}
}

func testRecheck(t *testing.T, missed bool) {
	first := time.Second // until the first attempt
	if missed {
		first = 2 * time.Second
	}
	off := crm(hook)[0]
	off.Disabled = true
	for _, tt := range []struct {
		name   string
		before *webhook.Destination
		err    error
		slow   bool
	}{
		{name: "disabled", before: &off},
		{name: "unknown", err: webhook.ErrUnknownDestination},
		{name: "invalid", before: &crm("gopher://x")[0]},
		{name: "the look-up fails", err: errors.New("the database is away")},
		{name: "failing", before: &crm("http://down.example/")[0]},
		{name: "disabled, and a look-up is in progress", before: &off, slow: true},
	} {
		t.Run(fmt.Sprintf("%s missed=%t", tt.name, missed), func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *rig) {
				recv := r.network.Receiver(hook, "")
				r.network.Receiver("http://down.example/", "", step.Refuse())
				var changed, slow atomic.Bool
				after := &crm(hook)[0]
				d := liveLookup{missed: make(chan struct{})}
				d.lookup = attempted(func(context.Context, string) (*webhook.Destination, error) {
					if changed.Load() {
						return after, nil
					}
					if slow.Load() {
						time.Sleep(2 * time.Second)
					}
					return tt.before, tt.err
				})
				r.start(webhook.Config{Directory: d})
				const n = 20
				for i := range n {
					r.track(fmt.Sprint("m", i))
				}
				time.Sleep(10*time.Minute + time.Second)
				if tt.slow {
					slow.Store(true)
					until := r.Held()[0].Until
					time.Sleep(time.Until(until) + time.Second) // the next look-up is in progress
				}
				r.track("new")
				changed.Store(true)
				if missed {
					d.missed <- struct{}{}
				} else {
					r.Recheck("", "crm", "nobody")
				}
				begin := time.Now()
				recv.Wait(t.Context(), 1)
				if took := time.Since(begin); took > first {
					t.Errorf("the first attempt is made %v after the change, want at most %v", took, first)
				}
				if tt.name != "failing" { // whose retries keep their schedule
					recv.Wait(t.Context(), n+1)
					if took := time.Since(begin); took > 2*time.Second {
						t.Errorf("the deliveries are made %v after the change, want at most 2 s", took)
					}
				}
			})
		})
	}
}

// all returns a function that retries all deliveries in a state.
func all(s webhook.State) func(r *rig) (int, error) {
	return func(r *rig) (int, error) {
		return last(r.RetryAll(r.t.Context(), webhook.Query{States: []webhook.State{s}}))
	}
}

// A delivery that a person asks for is attempted at once, also while its destination is probed.
func TestWhatAPersonAsksForIsAttemptedAtOnce(t *testing.T) {
	for _, tt := range []struct {
		name, id string // the id of the delivery that is asked for
		ask      func(r *rig) (int, error)
	}{
		{"Retry", "refused", func(r *rig) (int, error) {
			p, err := r.Retry(r.t.Context(), r.dead()[0].Ref())
			return p.Changed, err
		}},
		{"RetryAll of dead ones", "refused", all(webhook.StateDead)},
		{"RetryAll of delivered ones", "taken", all(webhook.StateDelivered)},
		{"RetryAll of waiting ones", "failing", all(webhook.StateWaiting)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			inBubble(t, func(t *testing.T, r *rig) {
				must(t, r.queue.Close())
				q, err := filequeue.Open(dir, filequeue.Config{HistoryAge: time.Hour})
				must(t, err)
				r.queue = q
				recv := r.network.Receiver(hook, "", step.Answer(422), step.Answer(200), step.Answer(503))
				r.start(webhook.Config{Destinations: crm(hook)})
				for _, id := range []string{"refused", "taken", "failing"} {
					r.track(id)
					time.Sleep(100 * time.Millisecond)
				}
				time.Sleep(20 * time.Minute) // after ten failures the destination is probed
				before := len(recv.Requests()) + 1
				recv.Wait(t.Context(), before)
				time.Sleep(10 * time.Millisecond)
				if len(r.Held()) != 1 {
					t.Fatal("the destination is not probed")
				}
				if n, err := tt.ask(r); n != 1 || err != nil {
					t.Fatalf("%s = %d, %v; want 1", tt.name, n, err)
				}
				time.Sleep(100 * time.Millisecond)
				qs := recv.Requests()[before:]
				if len(qs) != 1 || qs[0].JSON["messageId"] != tt.id {
					t.Errorf("got %d requests at once, want one for %q", len(qs), tt.id)
				}
			})
		})
	}
}
