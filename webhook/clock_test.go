package webhook_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/internal/disk"
	"github.com/hookferry/analytics/internal/simdisk"
	"github.com/hookferry/analytics/step"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/filequeue"
	"github.com/hookferry/analytics/webhook/store"
	"github.com/hookferry/analytics/webhook/webhooktest"
)

// atTime calls test in a synctest bubble whose clock starts after later than usual, with the store
// in the folder dir. Two calls with the same dir simulate a machine whose clock was set forward or
// back between them.
func atTime(t *testing.T, after time.Duration, dir string, test func(t *testing.T, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(after)
		q, err := filequeue.Open(dir, filequeue.Config{})
		must(t, err)
		r := &rig{t: t, network: webhooktest.NewNetwork(), queue: q}
		defer r.network.Close()
		test(t, r)
		if r.Forwarder != nil {
			r.stop()
		}
		if err := q.Close(); err != nil {
			t.Error(err)
		}
		if _, err := filequeue.Check(t.Context(), dir, nil); err != nil {
			t.Error(err)
		}
	})
}

// leaveDeliveries leaves three deliveries in the store: "retried", which was attempted, "fresh",
// which was not, and "refused", a dead letter.
func leaveDeliveries(t *testing.T, r *rig) {
	r.network.Receiver(hook, "shh", step.Answer(503), step.Answer(410))
	r.start(webhook.Config{Destinations: crm(hook)})
	r.track("retried")
	for r.Stats().Retried == 0 {
		time.Sleep(time.Microsecond)
	}
	r.track("refused")
	for len(r.Stats().Dead) == 0 {
		time.Sleep(time.Microsecond)
	}
	r.stop()
	f, err := webhook.New(webhook.Config{Store: r.queue, Destinations: crm(hook)})
	must(t, err)
	must(t, f.Forward(t.Context(), "crm", call("fresh")))
	r.Forwarder = nil
	if c := r.counts(); c.Waiting != 2 || c.Dead != 1 {
		t.Fatalf("Count() = %+v, want 2 waiting and 1 dead", c)
	}
}

// If the clock was set back by a day between two runs, waiting deliveries are attempted at once, like
// new ones, and none is lost.
func TestClockSetBackBetweenRunsDelaysNoDelivery(t *testing.T) {
	const day = 24 * time.Hour
	dir := t.TempDir()
	atTime(t, day, dir, leaveDeliveries)
	atTime(t, 0, dir, func(t *testing.T, r *rig) {
		recv := r.network.Receiver(hook, "shh")
		r.start(webhook.Config{Destinations: crm(hook)})
		r.track("new")
		r.track("fresh") // a duplicate
		time.Sleep(5 * time.Second)
		if s := r.Stats(); s.Delivered != 3 || s.Duplicates != 1 {
			t.Errorf("Stats() = %+v, want 3 delivered and 1 duplicate", s)
		}
		dead := r.dead()
		if len(dead) != 1 || dead[0].ID != "refused" {
			t.Fatalf("Dead() = %+v, want only the delivery \"refused\"", dead)
		}
		if n, err := r.Retry(t.Context(), dead[0].Ref()); n.Changed != 1 || err != nil {
			t.Errorf("Retry() = %+v, %v, want 1", n, err)
		}
		time.Sleep(2 * day)
		if s := r.Stats(); s.Delivered != 4 || r.counts() != (store.Counts{}) {
			t.Errorf("Stats() = %+v, Count() = %+v; want 4 delivered and an empty store", s, r.counts())
		}
		if n := len(recv.Requests()); n != 4 {
			t.Errorf("got %d requests, want 4", n)
		}
	})
}

// If the clock is set back while deliveries wait, they are attempted soon, and not only when the
// clock is right again: retries, those with a Retry-After, and fresh ones behind a rate limit.
func TestClockSetBackDelaysNoWaitingDelivery(t *testing.T) {
	for _, tt := range []struct {
		name   string
		rate   float64
		answer step.Step // until the clock is set back
	}{
		{"retries", 0, step.Answer(503)},
		{"Retry-After", 0, step.Answer(503).With("Retry-After", "60")},
		{"a rate limit", 0.1, step.Answer(200)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *rig) {
				must(t, r.queue.Close())
				simulated := simdisk.New(1)
				q, err := filequeue.Open(disk.Mount(simulated), filequeue.Config{})
				must(t, err)
				r.queue = q
				recv := r.network.Receiver(hook, "", tt.answer)
				d := crm(hook)
				d[0].MaxRate = tt.rate
				r.start(webhook.Config{Destinations: d})
				for i := range 9 {
					r.track(fmt.Sprint("m", i))
				}
				time.Sleep(30 * time.Second)
				simulated.SetClock(-time.Hour)
				recv.SetScript(step.Answer(200))
				time.Sleep(2 * time.Minute)
				if s := r.Stats(); s.Delivered != 9 {
					t.Errorf("%d of 9 deliveries are done two minutes after the clock was set back by an hour", s.Delivered)
				}
			})
		})
	}
}

// If the clock is set forward far enough, retry windows have ended. A delivery that was attempted
// before becomes a dead letter without another attempt. A delivery that was not attempted is
// delivered.
func TestClockSetForwardEndsRetryWindows(t *testing.T) {
	dir := t.TempDir()
	atTime(t, 0, dir, leaveDeliveries)
	atTime(t, 50*365*24*time.Hour, dir, func(t *testing.T, r *rig) {
		recv := r.network.Receiver(hook, "shh")
		r.start(webhook.Config{Destinations: crm(hook)})
		time.Sleep(time.Second)
		s := r.Stats()
		if s.Delivered != 1 || s.Dead[webhook.ReasonExpired] != 1 || len(recv.Requests()) != 1 {
			t.Errorf("Stats() = %+v with %d requests; want 1 delivered, 1 expired and 1 request", s, len(recv.Requests()))
		}
		// This must follow within a minute, before the retention discards the dead letters as too old.
		if n, err := last(r.RetryAll(t.Context(), webhook.Query{})); n != 2 || err != nil {
			t.Errorf("RetryAll() = %d, %v, want 2", n, err)
		}
		time.Sleep(time.Second)
		if s := r.Stats(); s.Delivered != 3 || r.counts() != (store.Counts{}) {
			t.Errorf("Stats() = %+v, Count() = %+v; want 3 delivered and an empty store", s, r.counts())
		}
	})
	// The clock is set back to the right time.
	atTime(t, 0, dir, func(t *testing.T, r *rig) {
		r.network.Receiver(hook, "shh")
		r.start(webhook.Config{Destinations: crm(hook)})
		for i := range 3 {
			r.track(fmt.Sprint("m", i))
		}
		time.Sleep(time.Second)
		if s := r.Stats(); s.Delivered != 3 || r.counts() != (store.Counts{}) {
			t.Errorf("Stats() = %+v, Count() = %+v; want 3 delivered and an empty store", s, r.counts())
		}
	})
}

// A stepped store has a clock that jumps once.
type stepped struct {
	webhook.Store
	by time.Duration // the length of the jump
	at time.Time     // when the clock jumps
}

func (q *stepped) Now() time.Time {
	if now := time.Now(); now.Before(q.at) {
		return now
	}
	return time.Now().Add(q.by)
}

// If the clock is set forward while deliveries are in flight, none of them is sent twice.
func TestClockSetForwardInFlightRepeatsNoRequest(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		recv := r.network.Receiver(hook, "shh", step.Answer(200).After(2*time.Second))
		r.queue = &stepped{Store: r.queue, by: time.Hour, at: time.Now().Add(500 * time.Millisecond)}
		r.start(webhook.Config{Destinations: crm(hook)})
		const n = 10
		for i := range n {
			r.track(fmt.Sprint("m", i))
		}
		time.Sleep(time.Minute)
		if got := len(recv.Requests()); got != n {
			t.Errorf("got %d requests for %d deliveries, want one for each", got, n)
		}
		if c := r.counts(); c.Waiting != 0 || c.Dead != 0 {
			t.Errorf("the store has %+v, want none waiting or dead", c)
		}
	})
}

// If the clock is set back, neither a rate limit, nor a hold, nor the probing of a failing destination
// delays a new delivery for as long as the clock was set back.
func TestClockSetBackDelaysNoNewDelivery(t *testing.T) {
	for _, tt := range []struct {
		name    string
		rate    float64
		unknown bool // the destination is unknown until the clock is set back
		failing bool // the receiver fails until then
	}{
		{name: "a rate limit", rate: 1. / 60},
		{name: "a hold", unknown: true},
		{name: "probing", failing: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *rig) {
				set := time.Now().Add(500 * time.Millisecond)
				recv := r.network.Receiver(hook, "shh", webhooktest.Do(func(*webhooktest.Request) step.Step {
					if tt.failing && time.Now().Before(set) {
						return step.Answer(503)
					}
					return step.Answer(200)
				}))
				r.queue = &stepped{Store: r.queue, by: -time.Hour, at: set}
				d := &crm(hook)[0]
				d.MaxRate = tt.rate
				r.start(webhook.Config{Directory: lookup(func(context.Context, string) (*webhook.Destination, error) {
					if tt.unknown && time.Now().Before(set) {
						return nil, webhook.ErrUnknownDestination
					}
					return d, nil
				})})
				for i := range 10 {
					r.track(fmt.Sprint("m", i))
				}
				time.Sleep(time.Until(set))
				r.track("new")
				time.Sleep(2 * time.Minute)
				if !slices.ContainsFunc(recv.Requests(), func(q *webhooktest.Request) bool { return q.JSON["messageId"] == "new" }) {
					t.Errorf("the new delivery was not attempted within two minutes; %d requests, Held() = %+v", len(recv.Requests()), r.Held())
				}
			})
		})
	}
}
