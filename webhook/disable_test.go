package webhook_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/step"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/store"
)

// A disabledObserver records which destinations were disabled and enabled.
type disabledObserver struct {
	webhook.Observer
	disabled []webhook.Disabled
	enabled  []webhook.Disabled
}

func (*disabledObserver) Accepted(webhook.Accepted)     {}
func (*disabledObserver) Attempted(webhook.Attempted)   {}
func (*disabledObserver) Ended(webhook.Record)          {}
func (o *disabledObserver) Disabled(d webhook.Disabled) { o.disabled = append(o.disabled, d) }
func (o *disabledObserver) Enabled(e webhook.Disabled)  { o.enabled = append(o.enabled, e) }

// With BuryDisabled, all waiting deliveries of a disabled destination become dead letters, before
// their retry windows end. So do new deliveries until Resume, also after a restart.
func TestBuryDisabledTurnsWaitingDeliveriesIntoDeadLetters(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		recv := r.network.Receiver("http://crm.example/", "", step.Answer(503))
		config := webhook.Config{
			DisableAfter: 2 * time.Hour, BuryDisabled: true,
			Destinations: []webhook.Destination{{ID: "crm", Endpoints: []webhook.Endpoint{{URL: "http://crm.example/"}}}},
		}
		r.start(config)
		forward := func(n int) {
			t.Helper()
			for range n {
				must(t, r.Forward(t.Context(), "crm", &analytics.Track{UserId: "u1", Event: "E"}))
			}
		}
		buried := func(want int) {
			t.Helper()
			synctest.Wait()
			if c, err := r.queue.Count(t.Context()); err != nil || c.Waiting != 0 || c.Dead != want {
				t.Errorf("Count() = %+v, %v; want none waiting and %d dead", c, err, want)
			}
			if held := r.Held(); len(held) != 1 || held[0].Kind != webhook.HoldDisabled || held[0].Reason != webhook.ReasonServerError || held[0].Since.IsZero() {
				t.Errorf("Held() = %+v, want one destination, disabled because of server errors", held)
			}
		}
		forward(100)
		time.Sleep(time.Hour)
		forward(1000) // most of them are not attempted, as the destination is failing
		for len(r.Held()) == 0 || r.Held()[0].Kind != webhook.HoldDisabled {
			time.Sleep(time.Second)
			synctest.Wait()
		}
		time.Sleep(time.Hour) // the delivery whose attempt disabled the destination is buried when it is due
		buried(1100)
		requests := len(recv.Requests())
		forward(5)
		time.Sleep(time.Second)
		buried(1105)
		if n := r.Stats().Dead[webhook.ReasonDisabled]; n < 1000 || n > 1105 {
			t.Errorf("got %d dead letters with the reason %q, want 1000 to 1105", n, webhook.ReasonDisabled)
		}
		r.stop()
		r.start(config)
		forward(5)
		time.Sleep(time.Second)
		buried(1110)
		if n := len(recv.Requests()); n != requests {
			t.Errorf("got %d requests after the destination was disabled, want none", n-requests)
		}

		recv.SetScript(step.Answer(200))
		must(t, r.Resume(t.Context(), "crm"))
		forward(1)
		if n, err := last(r.RetryAll(t.Context(), webhook.Query{Reason: webhook.ReasonDisabled})); n < 1000 || err != nil {
			t.Errorf("RetryAll yields %d, %v last; want at least 1000", n, err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if c, err := r.queue.Count(t.Context()); err != nil || c.Waiting != 0 || len(r.Held()) != 0 {
			t.Errorf("after Resume: Count() = %+v, %v, Held() = %+v; want none waiting or held", c, err, r.Held())
		}
	})
}

// The forwarder disables a destination that answers 410, or that fails for too long. The
// destination stays disabled until Resume, also after a restart. Its waiting deliveries are kept.
func TestDestinationIsDisabledUntilResume(t *testing.T) {
	for _, tt := range []struct {
		name   string
		answer step.Step
		config webhook.Config
		reason webhook.Reason
		after  time.Duration // from the first attempt until it is disabled; negative if it never is
		status int
	}{
		{"gone", step.Answer(410), webhook.Config{DisableGone: true}, webhook.ReasonRefused, 0, 410},
		{"gone, without DisableGone", step.Answer(410), webhook.Config{DisableAfter: 240 * time.Hour}, "", -1, 0},
		{"refusing", step.Answer(404), webhook.Config{DisableGone: true}, "", -1, 0},
		{"failing", step.Answer(503), webhook.Config{DisableAfter: 2 * time.Hour}, webhook.ReasonServerError, 2 * time.Hour, 503},
		{"failing for less than DisableAfter", step.Answer(503), webhook.Config{DisableAfter: 24 * time.Hour}, "", -1, 0},
	} {
		inBubble(t, func(t *testing.T, r *rig) {
			recv := r.network.Receiver("http://crm.example/", "", tt.answer)
			observer := new(disabledObserver)
			tt.config.Observers = []webhook.Observer{observer}
			tt.config.Destinations = []webhook.Destination{{ID: "crm", Endpoints: []webhook.Endpoint{{URL: "http://crm.example/"}}}}
			r.start(tt.config)
			forward := func() {
				t.Helper()
				must(t, r.Forward(t.Context(), "crm", &analytics.Track{UserId: "u1", Event: "E"}))
			}
			begin := time.Now()
			forward()
			time.Sleep(3 * time.Hour)
			synctest.Wait()
			var want []webhook.Disabled
			if tt.after >= 0 {
				want = []webhook.Disabled{{Destination: "crm", Reason: tt.reason, Status: tt.status, FailingSince: begin.UTC()}}
			}
			if diff := cmp.Diff(want, observer.disabled, cmpopts.IgnoreFields(webhook.Disabled{}, "Since")); diff != "" {
				t.Fatalf("%s: calls of Observer.Disabled (-want +got):\n%s", tt.name, diff)
			}
			if tt.after < 0 {
				return
			}
			requests := recv.Requests()
			last := requests[len(requests)-1].Time.Sub(begin)
			if last < tt.after || last > tt.after+10*time.Minute {
				t.Errorf("%s: the last attempt was after %v, want about %v", tt.name, last, tt.after)
			}
			r.stop()
			r.start(tt.config)
			forward()
			time.Sleep(time.Hour)
			synctest.Wait()
			held := r.Held()
			if len(recv.Requests()) != len(requests) || len(held) != 1 || held[0].Kind != webhook.HoldDisabled || held[0].Reason != tt.reason {
				t.Errorf("%s: after a restart: %d more requests, Held() = %+v; want none, disabled", tt.name, len(recv.Requests())-len(requests), held)
			}
			recv.SetScript(step.Answer(200))
			disabledAt := begin.Add(last).UTC().Truncate(time.Microsecond) // the precision of the store
			for range 2 {                                                  // the second call enables nothing
				must(t, r.Resume(t.Context(), "crm"))
			}
			must(t, r.Pause(t.Context(), "crm"))
			if err := r.Resume(t.Context(), "crm"); err != nil { // ends only the pause
				t.Fatal(err)
			}
			if diff := cmp.Diff([]webhook.Disabled{{Destination: "crm", Reason: tt.reason, Status: tt.status, FailingSince: begin.UTC(), Since: disabledAt}}, observer.enabled); diff != "" {
				t.Errorf("%s: calls of Observer.Enabled (-want +got):\n%s", tt.name, diff)
			}
			time.Sleep(time.Hour)
			synctest.Wait()
			if c, err := r.queue.Count(t.Context()); err != nil || c.Waiting != 0 || len(r.Held()) != 0 {
				t.Errorf("%s: after Resume: %d waiting, Held() = %+v, %v; want none waiting or held", tt.name, c.Waiting, r.Held(), err)
			}
		})
	}
}

// A slowSetter is a store whose SetDocument waits until its context ends.
type slowSetter struct{ webhook.Store }

func (slowSetter) SetDocument(ctx context.Context, _ store.Document) (uint64, error) {
	<-ctx.Done()
	return 0, ctx.Err()
}

// While the store is slow to disable a destination, the deliveries of others go on.
func TestDisablingDelaysNoOtherDestination(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.queue = slowSetter{r.queue}
		r.network.Receiver("http://gone.example/", "", step.Answer(410))
		recv := r.network.Receiver("http://crm.example/", "", step.Answer(200))
		var to []webhook.Destination
		for _, id := range []string{"gone", "crm"} {
			to = append(to, webhook.Destination{ID: id, Endpoints: []webhook.Endpoint{{URL: "http://" + id + ".example/"}}})
		}
		r.start(webhook.Config{DisableGone: true, Destinations: to})
		for range 100 {
			must(t, r.Forward(t.Context(), "gone", &analytics.Track{UserId: "u1", Event: "E"}))
		}
		time.Sleep(time.Second) // the workers of "gone" wait for the store
		if s := r.Stats(); s.InFlight == 0 {
			t.Errorf("Stats() = %+v, want deliveries in flight", s)
		}
		for range 1000 {
			must(t, r.Forward(t.Context(), "crm", &analytics.Track{UserId: "u1", Event: "E"}))
		}
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		if n := len(recv.Requests()); n != 1000 {
			t.Errorf("got %d requests within 0.1 s while the store disables another destination, want 1000", n)
		}
	})
}

// A failureObserver records the stages of failures.
type failureObserver struct {
	disabledObserver
	told []webhook.Failing
}

func (o *failureObserver) Failing(f webhook.Failing) { o.told = append(o.told, f) }

// Each stage of a series of failures is told once: its begin, half of DisableAfter, and its end. A
// series that ends with the destination disabled is not told as ended. Without DisableAfter there is no
// half.
func TestFailingIsToldOnceForEachStage(t *testing.T) {
	for _, tt := range []struct {
		name  string
		after time.Duration
		want  []webhook.FailingStage
	}{
		{"before it is disabled", 2 * time.Hour, []webhook.FailingStage{webhook.FailingBegan, webhook.FailingEnded, webhook.FailingBegan, webhook.FailingHalf}},
		{"never disabled", 0, []webhook.FailingStage{webhook.FailingBegan, webhook.FailingEnded, webhook.FailingBegan}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *rig) {
				recv := r.network.Receiver(hook, "", step.Answer(503))
				o := new(failureObserver)
				r.start(webhook.Config{DisableAfter: tt.after, Destinations: crm(hook), Observers: []webhook.Observer{o}})
				begin := time.Now()
				for i := range 5 {
					r.track(fmt.Sprint("m", i))
				}
				time.Sleep(30 * time.Minute)
				recv.SetScript(step.Answer(200))
				time.Sleep(30 * time.Minute)
				recv.SetScript(step.Answer(410))
				r.track("refused")
				recv.SetScript(step.Answer(500))
				r.track("failed")
				time.Sleep(4 * time.Hour)
				synctest.Wait()
				var stages []webhook.FailingStage
				for _, f := range o.told {
					stages = append(stages, f.Stage)
				}
				if diff := cmp.Diff(tt.want, stages); diff != "" {
					t.Fatalf("stages (-want +got):\n%s", diff)
				}
				first, ended, half := o.told[0], o.told[1], o.told[len(o.told)-1]
				want := webhook.Failing{Destination: "crm", Stage: webhook.FailingBegan, Since: first.Since, Reason: webhook.ReasonServerError, Status: 503}
				if diff := cmp.Diff(want, first); diff != "" || first.Since.Sub(begin) > time.Second {
					t.Errorf("the first, %v after the begin (-want +got):\n%s", first.Since.Sub(begin), diff)
				}
				if !ended.Since.Equal(first.Since) || ended.Reason != "" {
					t.Errorf("ended = %+v, want the series that began at %v", ended, first.Since)
				}
				if disabled := len(o.disabled) == 1; disabled != (tt.after > 0) || disabled && !o.disabled[0].FailingSince.Equal(half.Since) {
					t.Errorf("disabled = %+v, want the series of %+v", o.disabled, half)
				}
			})
		})
	}
}
