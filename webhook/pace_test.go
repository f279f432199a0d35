package webhook_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/step"
	"github.com/hookferry/analytics/webhook"
)

// The timeout, retry window and schedule of a destination replace those of the Config.
func TestDestinationHasItsOwnTimeoutWindowAndSchedule(t *testing.T) {
	for _, tt := range []struct {
		name        string
		answer      step.Step
		destination webhook.Destination
		took        time.Duration // by each attempt
		least, most int           // attempts
	}{
		{"short timeout and window", step.Hang(), webhook.Destination{Timeout: time.Second, Window: time.Minute}, time.Second, 4, 40},
		{"eager schedule", step.Answer(500), webhook.Destination{Schedule: webhook.ScheduleEager}, 0, 240, 1000},
		{"patient schedule", step.Answer(500), webhook.Destination{Schedule: webhook.SchedulePatient}, 0, 8, 40},
	} {
		inBubble(t, func(t *testing.T, r *rig) {
			recv := r.network.Receiver("http://crm.example/", "", tt.answer)
			d := tt.destination
			d.ID, d.Endpoints = "crm", []webhook.Endpoint{{URL: "http://crm.example/"}}
			r.start(webhook.Config{Destinations: []webhook.Destination{d}})
			begin := time.Now()
			must(t, r.Forward(t.Context(), "crm", &analytics.Track{UserId: "u1", Event: "E"}))
			window := d.Window
			if window == 0 {
				window = webhook.DefaultWindow
			}
			time.Sleep(window + time.Minute)
			synctest.Wait()
			dead, requests := r.dead(), recv.Requests()
			if len(dead) != 1 || dead[0].Reason != webhook.ReasonExpired || dead[0].At.After(begin.Add(window)) {
				t.Fatalf("%s: got the dead letters %+v, want one with the reason %q before %v", tt.name, dead, webhook.ReasonExpired, begin.Add(window))
			}
			for _, a := range dead[0].Attempts {
				if time.Duration(a.Took) != tt.took {
					t.Errorf("%s: an attempt took %v, want %v", tt.name, a.Took, tt.took)
				}
			}
			if n := len(requests); n < tt.least || n > tt.most {
				t.Errorf("%s: got %d attempts, want %d to %d", tt.name, n, tt.least, tt.most)
			}
		})
	}
}

// EraseUser removes the waiting deliveries and dead letters of one user, and none of other users.
func TestEraseUserRemovesOnlyDeliveriesOfThatUser(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.network.Receiver("http://crm.example/", "", step.Answer(400))
		r.start(webhook.Config{Destinations: []webhook.Destination{
			{ID: "crm", Endpoints: []webhook.Endpoint{{URL: "http://crm.example/"}}},
			{ID: "off", Disabled: true, Endpoints: []webhook.Endpoint{{URL: "http://off.example/"}}},
		}})
		long := string(make([]byte, 300))
		for _, user := range []string{"u1", "u2", long} {
			for _, id := range []string{"crm", "off"} {
				must(t, r.Forward(t.Context(), id, &analytics.Track{UserId: user, Event: "E"}))
			}
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		for _, user := range []string{"u1", long} {
			if erased, claimed, err := r.EraseUser(t.Context(), user); erased != 2 || claimed != 0 || err != nil {
				t.Errorf("EraseUser() = %d, %d, %v; want 2, 0, nil", erased, claimed, err)
			}
		}
		c, err := r.queue.Count(t.Context())
		if err != nil || c.Waiting != 1 || c.Dead != 1 {
			t.Errorf("Count() = %+v, %v; want 1 waiting and 1 dead, of the other user", c, err)
		}
		if _, _, err := r.EraseUser(t.Context(), ""); err == nil {
			t.Error("EraseUser() without a user = nil, want an error")
		}
	})
}
