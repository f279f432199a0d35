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

// StandardRetries retries after answers that are final otherwise, for three days, and gives each
// attempt 30 s. A 410 stays final.
func TestStandardRetries(t *testing.T) {
	for _, tt := range []struct {
		name   string
		config *webhook.Retries
		own    *webhook.Retries
		answer step.Step
		took   time.Duration // until it is a dead letter
		tries  int
		reason webhook.Reason
	}{
		{"without", nil, nil, step.Answer(404), 0, 1, webhook.ReasonRefused},
		{"without, a slow answer", nil, nil, step.Answer(200).After(20 * time.Second), webhook.DefaultWindow, 0, webhook.ReasonExpired},
		{"of all, 404", webhook.StandardRetries(), nil, step.Answer(404), 72 * time.Hour, 10, webhook.ReasonExpired},
		{"of all, 302", webhook.StandardRetries(), nil, step.Answer(302), 72 * time.Hour, 10, webhook.ReasonExpired},
		{"of all, 410", webhook.StandardRetries(), nil, step.Answer(410), 0, 1, webhook.ReasonRefused},
		{"of one", nil, webhook.StandardRetries(), step.Answer(404), 72 * time.Hour, 10, webhook.ReasonExpired},
		{"one without", webhook.StandardRetries(), new(webhook.Retries), step.Answer(404), 0, 1, webhook.ReasonRefused},
		{"410 too, for a week", &webhook.Retries{Statuses: []string{"410"}, Window: webhook.MaxWindow, Schedule: webhook.ScheduleDays}, nil, step.Answer(410), webhook.MaxWindow, 14, webhook.ReasonExpired},
		{"others only", &webhook.Retries{Statuses: []string{"403", "3xx"}}, nil, step.Answer(404), 0, 1, webhook.ReasonRefused},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *rig) {
				r.network.Receiver(hook, "shh", tt.answer)
				d := crm(hook)
				d[0].Retries = tt.own
				r.start(webhook.Config{Destinations: d, Retries: tt.config, Poll: time.Hour})
				begin := time.Now()
				r.track("m")
				time.Sleep(tt.took + time.Hour)
				dead := r.dead()
				if len(dead) != 1 {
					t.Fatalf("dead = %v, want one dead letter", dead)
				}
				got := dead[0]
				if took := got.At.Sub(begin); took < tt.took-time.Minute || took > tt.took+time.Minute {
					t.Errorf("it was a dead letter after %v, want about %v", took, tt.took)
				}
				if got.Reason != tt.reason || tt.tries > 0 && (got.Tries < tt.tries-1 || got.Tries > tt.tries) {
					t.Errorf("reason %q after %d tries, want %q after about %d", got.Reason, got.Tries, tt.reason, tt.tries)
				}
			})
		})
	}
	inBubble(t, func(t *testing.T, r *rig) {
		r.network.Receiver(hook, "shh", step.Answer(200).After(20*time.Second))
		r.start(webhook.Config{Destinations: crm(hook), Retries: webhook.StandardRetries()})
		r.track("slow")
		time.Sleep(time.Minute)
		if s := r.Stats(); s.Delivered != 1 || s.Retried != 0 {
			t.Errorf("Stats() = %+v, want one delivered at the first attempt", s)
		}
	})
}

// A wait of a day is no sign that the clock was set back: a restart does not shorten it.
func TestRestartKeepsWaitsOfDays(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		recv := r.network.Receiver(hook, "shh", step.Answer(503))
		config := webhook.Config{Destinations: crm(hook), Retries: webhook.StandardRetries(), Poll: time.Hour}
		r.start(config)
		r.track("m")
		time.Sleep(20 * time.Hour)
		n := len(recv.Requests())
		r.stop()
		r.start(config)
		time.Sleep(5 * time.Minute)
		if now := len(recv.Requests()); now != n {
			t.Errorf("%d requests after the restart, want none before the retry is due", now-n)
		}
	})
}

func TestRetriesThatAreNotAllowed(t *testing.T) {
	retries := webhook.Retries{
		Timeout: time.Minute, Window: 8 * 24 * time.Hour, Schedule: "daily",
		Statuses: []string{"404", "3xx", "500", "", "2xx"},
	}
	d := webhook.Destination{ID: "crm", Endpoints: []webhook.Endpoint{{URL: hook}}, Retries: &retries}
	want := `webhook: Retries.Timeout: is 1m0s; 0s to 30s is allowed
webhook: Retries.Window: is 192h0m0s; 0s to 168h0m0s is allowed
webhook: Retries.Schedule: is not known; "eager", "patient", "days" and "" (the default) are allowed
webhook: Retries.Statuses[2]: is no status from 300 to 499, nor "3xx" or "4xx"
webhook: Retries.Statuses[3]: is no status from 300 to 499, nor "3xx" or "4xx"
webhook: Retries.Statuses[4]: is no status from 300 to 499, nor "3xx" or "4xx"`
	if err := d.Validate(); err == nil || err.Error() != want {
		t.Errorf("Validate() = %v, want %s", err, want)
	}
}
