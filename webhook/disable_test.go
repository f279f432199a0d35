package webhook_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/webhooktest"
)

// disabled is an observer of destinations that are disabled.
type disabled struct {
	webhook.Observer
	all     []webhook.Disabled
	enabled []webhook.Enabled
}

func (*disabled) Accepted(webhook.Accepted)      {}
func (*disabled) Attempted(webhook.Attempted)    {}
func (*disabled) Ended(webhook.Ended)            {}
func (d *disabled) Disabled(is webhook.Disabled) { d.all = append(d.all, is) }
func (d *disabled) Enabled(is webhook.Enabled)   { d.enabled = append(d.enabled, is) }

// With BuryDisabled, what waits for a destination that was disabled becomes dead letters, whatever
// its time, and so does what comes for it until Resume, after a restart, too.
func TestBuryDisabledTurnsWaitingDeliveriesIntoDeadLetters(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		recv := r.network.Receiver("http://crm.example/", "", webhooktest.Answer(503))
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
				t.Errorf("%+v, %v; want none that waits, and %d dead letters", c, err, want)
			}
			if held := r.Held(); len(held) != 1 || held[0].Hold != webhook.HoldDisabled || held[0].Reason != webhook.ReasonServerError || held[0].Since.IsZero() {
				t.Errorf("held: %+v, want it disabled", held)
			}
		}
		forward(100)
		time.Sleep(time.Hour)
		forward(1000) // most of them wait behind the breaker
		for len(r.Held()) == 0 || r.Held()[0].Hold != webhook.HoldDisabled {
			time.Sleep(time.Second)
			synctest.Wait()
		}
		time.Sleep(time.Hour) // the one whose attempt disabled it is buried when it is due
		buried(1100)
		requests := len(recv.Requests())
		forward(5)
		time.Sleep(time.Second)
		buried(1105)
		if n := r.Stats().Dead[webhook.ReasonDisabled]; n < 1000 || n > 1105 {
			t.Errorf("%d are dead as it is disabled, want nearly all", n)
		}
		r.stop()
		r.start(config)
		forward(5)
		time.Sleep(time.Second)
		buried(1110)
		if n := len(recv.Requests()); n != requests {
			t.Errorf("%d requests after it was disabled", n-requests)
		}

		recv.SetScript(webhooktest.Answer(200))
		must(t, r.Resume(t.Context(), "crm"))
		forward(1)
		if n, err := last(r.ReplayAll(t.Context(), webhook.DeadFilter{Reason: webhook.ReasonDisabled})); n < 1000 || err != nil {
			t.Errorf("ReplayAll = %d, %v", n, err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if c, err := r.queue.Count(t.Context()); err != nil || c.Waiting != 0 || len(r.Held()) != 0 {
			t.Errorf("after Resume: %+v, %v, held %+v", c, err, r.Held())
		}
	})
}

// A destination that is gone, or fails for too long, is disabled until Resume, also after a
// restart. What waits is kept.
func TestDestinationIsDisabledUntilResume(t *testing.T) {
	for _, tt := range []struct {
		name   string
		answer webhooktest.Step
		config webhook.Config
		reason webhook.Reason
		after  time.Duration // the first attempt it is disabled; negative: never
		status int
	}{
		{"gone", webhooktest.Answer(410), webhook.Config{DisableGone: true}, webhook.ReasonRefused, 0, 410},
		{"gone, not asked for", webhooktest.Answer(410), webhook.Config{DisableAfter: 240 * time.Hour}, "", -1, 0},
		{"refusing", webhooktest.Answer(404), webhook.Config{DisableGone: true}, "", -1, 0},
		{"failing", webhooktest.Answer(503), webhook.Config{DisableAfter: 2 * time.Hour}, webhook.ReasonServerError, 2 * time.Hour, 503},
		{"failing for less", webhooktest.Answer(503), webhook.Config{DisableAfter: 24 * time.Hour}, "", -1, 0},
	} {
		inBubble(t, func(t *testing.T, r *rig) {
			recv := r.network.Receiver("http://crm.example/", "", tt.answer)
			observer := new(disabled)
			tt.config.Observer = observer
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
				want = []webhook.Disabled{{Destination: "crm", Reason: tt.reason, Status: tt.status, Since: begin.UTC()}}
			}
			if diff := cmp.Diff(want, observer.all); diff != "" {
				t.Fatalf("%s: what the observer is told (-want +got):\n%s", tt.name, diff)
			}
			if tt.after < 0 {
				return
			}
			requests := recv.Requests()
			last := requests[len(requests)-1].Time.Sub(begin)
			if last < tt.after || last > tt.after+10*time.Minute {
				t.Errorf("%s: the last attempt is after %v, want about %v", tt.name, last, tt.after)
			}
			r.stop()
			r.start(tt.config)
			forward()
			time.Sleep(time.Hour)
			synctest.Wait()
			held := r.Held()
			if len(recv.Requests()) != len(requests) || len(held) != 1 || held[0].Hold != webhook.HoldDisabled || held[0].Reason != tt.reason {
				t.Errorf("%s: after a restart %d requests more, held %+v; want none, disabled", tt.name, len(recv.Requests())-len(requests), held)
			}
			recv.SetScript(webhooktest.Answer(200))
			disabledAt := begin.Add(last).UTC().Truncate(time.Microsecond) // as the store keeps times
			for range 2 {                                                  // the second has nothing to enable
				must(t, r.Resume(t.Context(), "crm"))
			}
			must(t, r.Pause(t.Context(), "crm"))
			if err := r.Resume(t.Context(), "crm"); err != nil { // a pause alone
				t.Fatal(err)
			}
			if diff := cmp.Diff([]webhook.Enabled{{Destination: "crm", Reason: tt.reason, Since: disabledAt}}, observer.enabled); diff != "" {
				t.Errorf("%s: what the observer is told of enabling (-want +got):\n%s", tt.name, diff)
			}
			time.Sleep(time.Hour)
			synctest.Wait()
			if c, err := r.queue.Count(t.Context()); err != nil || c.Waiting != 0 || len(r.Held()) != 0 {
				t.Errorf("%s: after Resume %d wait, held %+v, %v", tt.name, c.Waiting, r.Held(), err)
			}
		})
	}
}
