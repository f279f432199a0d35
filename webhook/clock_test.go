package webhook_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/filequeue"
	"github.com/hookferry/analytics/webhook/webhooktest"
)

// atTime calls test in a bubble whose clock is so long after that of all
// bubbles' begin, with a store in the folder dir. So from one call to the next
// the machine's clock may be set forward or back.
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
		if _, err := filequeue.Check(dir); err != nil {
			t.Error(err)
		}
	})
}

// leaveBehind leaves a store with "retried", which was attempted, "fresh", which
// was not, and "refused", a dead letter.
func leaveBehind(t *testing.T, r *rig) {
	r.network.Receiver(hook, "shh", webhooktest.Answer(503), webhooktest.Answer(410))
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
		t.Fatalf("Count() = %+v", c)
	}
}

// With the clock set back by a day, what waits is due a day later, and not lost:
// times are stored as they were read. What comes meanwhile is delivered at once.
func TestTheClockIsSetBack(t *testing.T) {
	const day = 24 * time.Hour
	dir := t.TempDir()
	atTime(t, day, dir, leaveBehind)
	atTime(t, 0, dir, func(t *testing.T, r *rig) {
		recv := r.network.Receiver(hook, "shh")
		r.start(webhook.Config{Destinations: crm(hook)})
		r.track("new")
		r.track("fresh") // is there
		time.Sleep(time.Second)
		if s := r.Stats(); s.Delivered != 1 || s.Duplicates != 1 {
			t.Errorf("Stats() = %+v", s)
		}
		dead := r.dead()
		if len(dead) != 1 || dead[0].ID != "refused" {
			t.Fatalf("Dead = %+v", dead)
		}
		if n, err := r.Replay(t.Context(), dead[0].Key); n != 1 || err != nil {
			t.Errorf("Replay = %d, %v", n, err)
		}
		time.Sleep(day - 2*time.Second)
		if n := len(recv.Requests()); n != 2 {
			t.Errorf("%d requests before the old time, want those for the new call and the dead letter", n)
		}
		time.Sleep(5 * time.Second)
		if s := r.Stats(); s.Delivered != 4 || r.counts() != (webhook.Counts{}) {
			t.Errorf("Stats() = %+v, Count() = %+v after it", s, r.counts())
		}
		if n := len(recv.Requests()); n != 4 {
			t.Errorf("%d requests", n)
		}
	})
}

// With the clock set forward, windows have ended: what was attempted before is a
// dead letter without a further attempt, and what was not is delivered.
func TestTheClockIsSetForward(t *testing.T) {
	dir := t.TempDir()
	atTime(t, 0, dir, leaveBehind)
	atTime(t, 50*365*24*time.Hour, dir, func(t *testing.T, r *rig) {
		recv := r.network.Receiver(hook, "shh")
		r.start(webhook.Config{Destinations: crm(hook)})
		time.Sleep(time.Second)
		s := r.Stats()
		if s.Delivered != 1 || s.Dead[webhook.ReasonExpired] != 1 || len(recv.Requests()) != 1 {
			t.Errorf("Stats() = %+v with %d requests", s, len(recv.Requests()))
		}
		// Within a minute, or they are too old to be kept.
		if n, err := last(r.ReplayAll(t.Context(), webhook.DeadFilter{})); n != 2 || err != nil {
			t.Errorf("ReplayAll = %d, %v", n, err)
		}
		time.Sleep(time.Second)
		if s := r.Stats(); s.Delivered != 3 || r.counts() != (webhook.Counts{}) {
			t.Errorf("Stats() = %+v, Count() = %+v", s, r.counts())
		}
	})
	// And back again.
	atTime(t, 0, dir, func(t *testing.T, r *rig) {
		r.network.Receiver(hook, "shh")
		r.start(webhook.Config{Destinations: crm(hook)})
		for i := range 3 {
			r.track(fmt.Sprint("m", i))
		}
		time.Sleep(time.Second)
		if s := r.Stats(); s.Delivered != 3 || r.counts() != (webhook.Counts{}) {
			t.Errorf("Stats() = %+v, Count() = %+v", s, r.counts())
		}
	})
}

// A stepped store is one whose clock is set forward.
type stepped struct {
	webhook.Store
	by time.Duration
	at time.Time // when it is set
}

func (q *stepped) Now() time.Time {
	if now := time.Now(); now.Before(q.at) {
		return now
	}
	return time.Now().Add(q.by)
}

// A clock that is set forward while deliveries are in flight has none of them sent twice.
func TestTheClockIsSetForwardInFlight(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		recv := r.network.Receiver(hook, "shh", webhooktest.Answer(200).After(2*time.Second))
		r.queue = &stepped{Store: r.queue, by: time.Hour, at: time.Now().Add(500 * time.Millisecond)}
		r.start(webhook.Config{Destinations: crm(hook)})
		const n = 10
		for i := range n {
			r.track(fmt.Sprint("m", i))
		}
		time.Sleep(time.Minute)
		if got := len(recv.Requests()); got != n {
			t.Errorf("%d requests for %d deliveries", got, n)
		}
		if c := r.counts(); c.Waiting != 0 || c.Dead != 0 {
			t.Errorf("the store holds %+v", c)
		}
	})
}
