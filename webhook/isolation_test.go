package webhook_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/internal/soak"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/filequeue"
	"github.com/hookferry/analytics/webhook/webhooktest"
)

// receivers adds n receivers and returns their destinations, called name and a
// number.
func (r *rig) receivers(name string, n int, script ...webhooktest.Step) ([]webhook.Destination, []*webhooktest.Receiver) {
	var ds []webhook.Destination
	var recvs []*webhooktest.Receiver
	for i := range n {
		id := fmt.Sprint(name, i)
		u := "http://" + id + ".example/"
		recvs = append(recvs, r.network.Receiver(u, "", script...))
		ds = append(ds, webhook.Destination{ID: id, Endpoints: []webhook.Endpoint{{URL: u}}})
	}
	return ds, recvs
}

// fill forwards n events to each of ds.
func (r *rig) fill(ds []webhook.Destination, n int) {
	r.t.Helper()
	for _, d := range ds {
		var events []event.Event
		for i := range n {
			id := fmt.Sprint(d.ID, "-", r.events.Add(1), "-", i)
			events = append(events, event.Event{ID: id, Type: "track", Body: []byte(`{"messageId":"` + id + `"}`), Received: time.Now()})
		}
		if err := r.ForwardEvents(r.t.Context(), []string{d.ID}, events...); err != nil {
			r.t.Fatal(err)
		}
	}
}

func requests(recvs []*webhooktest.Receiver) int {
	n := 0
	for _, recv := range recvs {
		n += len(recv.Requests())
	}
	return n
}

// Many destinations hang at once. The others go on as before, from the first
// second.
func TestManyThatHangAtOnceDelayNoOther(t *testing.T) {
	const healthy = 8
	slots, each, backlog := 8, 250, 2000
	if soak.On() {
		slots, each, backlog = 16, 500, 8000
	}
	took := func(seed uint64, hanging int, how string) (d time.Duration) {
		inBubble(t, func(t *testing.T, r *rig) {
			webhook.SeedJitter(seed)
			good, _ := r.receivers("fine", healthy, webhooktest.Answer(200).After(10*time.Millisecond))
			for i := range good {
				good[i].MaxConcurrent = slots
			}
			script := webhooktest.Answer(200).After(10 * time.Millisecond)
			if how == "new" {
				script = webhooktest.Hang()
			}
			bad, sick := r.receivers("sick", hanging, script)
			r.start(webhook.Config{Destinations: append(slices.Clone(good), bad...)})
			r.fill(good, 100)
			switch how {
			case "known":
				r.fill(bad, 20)
				time.Sleep(3 * time.Second)
			case "draining":
				r.fill(bad, backlog/max(hanging, 1))
				time.Sleep(50 * time.Millisecond)
			}
			for _, recv := range sick {
				recv.SetScript(webhooktest.Hang())
			}
			r.fill(bad, 80)
			synctest.Wait() // as many attempts hang as may
			time.Sleep(200 * time.Millisecond)
			before := requests(sick)
			begin := time.Now()
			target := r.Stats().Delivered + int64(healthy*each)
			r.fill(good, each)
			for r.Stats().Delivered < target {
				time.Sleep(time.Millisecond)
			}
			d = time.Since(begin)
			time.Sleep(time.Minute)
			if n := requests(sick) - before; n > hanging*(12+32) { // one at a time, and one for each slot as the first time out
				t.Errorf("%d attempts within a minute at %d destinations that hang", n, hanging)
			}
		})
		return d
	}
	crowds := []struct {
		hanging int
		how     string
		most    float64 // times as long; an answer more or less is a thirtieth
		soak    bool
	}{
		{1, "new", 1.05, true},
		{16, "new", 1.05, false},
		{100, "new", 1.05, true},
		{1000, "new", 1.1, true},
		{16, "known", 1.05, false},
		{100, "known", 1.05, true},
		{16, "draining", 1.05, false},
		{100, "draining", 2.5, true},
	}
	for seed := range soak.Seeds(t, 1) {
		// What a lane may do at once depends on how long it has been idle.
		alone := map[string]time.Duration{}
		for _, how := range []string{"new", "known", "draining"} {
			alone[how] = took(seed, 0, how)
		}
		for _, tt := range crowds {
			if tt.soak && !soak.On() {
				continue
			}
			d := took(seed, tt.hanging, tt.how)
			alone := alone[tt.how]
			ratio := d.Seconds() / alone.Seconds()
			t.Logf("%d %s ones hang: %v instead of %v, %.2f x", tt.hanging, tt.how, d, alone, ratio)
			if ratio > tt.most {
				t.Errorf("seed %d, %d %s destinations hang: %d deliveries to others take %v, %v without them", seed, tt.hanging, tt.how, healthy*each, d, alone)
			}
		}
	}
}

// What waits for a destination that is down waits in the store, with its window
// not begun: all of it is delivered after an outage that is shorter than one.
func TestRetryWindowBeginsAtTheFirstAttempt(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		const waiting = 5000
		recv := r.network.Receiver(hook, "shh", webhooktest.Answer(503))
		r.start(webhook.Config{Destinations: crm(hook)})
		r.fill(crm(hook), waiting)
		time.Sleep(time.Minute)
		if n := len(recv.Requests()); n > 90 {
			t.Errorf("%d requests in the first minute", n)
		}
		time.Sleep(time.Hour - time.Minute)
		if n := len(recv.Requests()); n > 800 {
			t.Errorf("%d requests in the first hour", n)
		}
		time.Sleep(2*time.Hour + 50*time.Minute)
		recv.SetScript(webhooktest.Answer(200))
		time.Sleep(time.Minute)
		if s := r.Stats(); s.Delivered < waiting-100 {
			t.Errorf("Stats() = %+v a minute after it is back, want %d delivered, but for retries that are not due", s, waiting)
		}
		time.Sleep(10 * time.Minute)
		if s := r.Stats(); s.Delivered != waiting || len(r.dead()) > 0 {
			t.Errorf("Stats() = %+v ten minutes later, want %d delivered", s, waiting)
		}
		if c := r.counts(); c.Waiting != 0 {
			t.Errorf("the store holds %+v", c)
		}
	})
}

// What was attempted keeps its schedule while its destination is left alone,
// to the last attempt of its window.
func TestBreakerKeepsTheRetrySchedule(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		const n = 20
		recv := r.network.Receiver(hook, "shh", webhooktest.Answer(503))
		r.start(webhook.Config{Destinations: crm(hook)})
		begin := time.Now()
		r.fill(crm(hook), n)
		time.Sleep(5 * time.Hour)
		first, last := map[string]time.Time{}, map[string]time.Time{}
		for _, q := range recv.Requests() {
			id := string(q.Body)
			if first[id].IsZero() {
				first[id] = q.Time
			}
			if d := q.Time.Sub(first[id]); d > 4*time.Hour {
				t.Errorf("an attempt %v after the first", d)
			}
			last[id] = q.Time
		}
		if len(first) != n {
			t.Errorf("%d of %d were attempted", len(first), n)
		}
		for id := range first {
			if d := first[id].Sub(begin); d > 20*time.Minute {
				t.Errorf("a first attempt after %v", d)
			}
			if d := last[id].Sub(first[id]); d < 4*time.Hour-6*time.Second {
				t.Errorf("the last attempt is %v after the first", d)
			}
		}
		for _, d := range r.dead() {
			if d.Reason != webhook.ReasonExpired || d.Tries < 20 {
				t.Errorf("%s: reason %q after %d tries", d.ID, d.Reason, d.Tries)
			}
		}
		if s := r.Stats(); s.Dead[webhook.ReasonExpired] != n {
			t.Errorf("Stats() = %+v", s)
		}
	})
}

// What waits for a destination that is gone for good ends as dead letters, and
// what waits for less than a window when it comes back does not.
func TestDeliveriesExpireAfterARetryWindowOfFailures(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		const n = 2000
		recv := r.network.Receiver(hook, "shh", webhooktest.Refuse())
		r.start(webhook.Config{Destinations: crm(hook)})
		r.fill(crm(hook), n)
		time.Sleep(3 * time.Hour)
		r.fill(crm(hook), n)
		time.Sleep(time.Hour - time.Second)
		if c := r.counts(); c.Dead > 20 {
			t.Errorf("before the window of those that were not attempted ends: %+v", c)
		}
		time.Sleep(10 * time.Minute)
		// Those that were attempted, at intervals, have windows of their own.
		if c := r.counts(); c.Dead < n/2 || c.Waiting > n+n/2 {
			t.Errorf("after the window: %+v", c)
		}
		for _, d := range r.dead() {
			if d.Reason != webhook.ReasonExpired {
				t.Fatalf("%s died of %q", d.ID, d.Reason)
			}
		}
		recv.SetScript(webhooktest.Answer(200))
		time.Sleep(11 * time.Minute) // the longest wait of a retry, and one of the probe
		if c := r.counts(); c.Waiting != 0 || len(recv.Requests()) < n {
			t.Errorf("%+v and %d requests after the destination came back", c, len(recv.Requests()))
		}
	})
}

// A destination that refuses what it is sent is not one that fails.
func TestRefusalsDoNotOpenTheBreaker(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.network.Receiver(hook, "shh", webhooktest.Answer(400))
		r.start(webhook.Config{Destinations: crm(hook)})
		r.fill(crm(hook), 500)
		synctest.Wait()
		if s := r.Stats(); s.Dead[webhook.ReasonRefused] != 500 || len(r.Held()) != 0 {
			t.Errorf("Stats() = %+v, Held() = %+v", s, r.Held())
		}
	})
}

// An endpoint that hangs beside one that is well costs the destination
// nothing.
func TestADeadEndpointBesideOthersDoesNotOpenTheBreaker(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		const dead = "http://dead.example/"
		r.network.Receiver(dead, "shh", webhooktest.Hang())
		fine := r.network.Receiver(hook, "shh")
		r.start(webhook.Config{Destinations: crm(dead, hook)})
		begin := time.Now()
		r.fill(crm(hook), 1000)
		if _, err := fine.Wait(t.Context(), 1000); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(begin); d > 0 || len(r.Held()) != 0 {
			t.Errorf("1000 deliveries took %v, Held() = %+v", d, r.Held())
		}
	})
}

// A fetchCounter counts fetches, each of which takes some time. It keeps nothing for the caller
// of Put.
type fetchCounter struct {
	webhook.Store
	fetches atomic.Int64
	took    time.Duration
}

func (q *fetchCounter) Put(ctx context.Context, ps []webhook.Put, out []webhook.Result) error {
	ps = slices.Clone(ps)
	for i := range ps {
		ps[i].Keep = false
	}
	return q.Store.Put(ctx, ps, out)
}

func (q *fetchCounter) Fetch(ctx context.Context, wants []webhook.Want, maxBytes int64, dst []webhook.Delivery) ([]webhook.Delivery, error) {
	q.fetches.Add(1)
	time.Sleep(q.took)
	return q.Store.Fetch(ctx, wants, maxBytes, dst)
}

// What comes during a fetch waits for the end of it, however long it takes, and not for
// longer.
func TestDeliveryPutDuringAFetchIsFetchedNext(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		const took = 10 * time.Millisecond
		r.queue = &fetchCounter{Store: r.queue, took: took}
		recv := r.network.Receiver(hook, "shh")
		r.start(webhook.Config{Destinations: crm(hook)})
		synctest.Wait() // Run waits
		for i := range 10 {
			begin := time.Now()
			r.fill(crm(hook), 1)
			if _, err := recv.Wait(t.Context(), i+1); err != nil {
				t.Fatal(err)
			}
			if d := time.Since(begin); d > 2*took {
				t.Errorf("delivery %d took %v, two fetches take %v", i, d, 2*took)
			}
		}
	})
}

// To go through thousands of destinations without room again and again would take a
// processor.
func TestSaturatedDestinationsCauseNoExtraFetches(t *testing.T) {
	for _, tt := range []struct {
		hanging int
		most    int64 // fetches in a second, in which 1000 deliveries come for another
	}{
		{100, 1100},
		{3000, 1100},
	} {
		inBubble(t, func(t *testing.T, r *rig) {
			q := &fetchCounter{Store: r.queue}
			r.queue = q
			good, _ := r.receivers("fine", 1)
			bad, _ := r.receivers("sick", tt.hanging, webhooktest.Hang())
			r.start(webhook.Config{Destinations: append(bad, good...), MaxInFlight: 64})
			r.fill(bad, 5)
			time.Sleep(time.Second)
			before := q.fetches.Load()
			for range 1000 {
				r.fill(good, 1)
				time.Sleep(time.Millisecond)
			}
			if n := q.fetches.Load() - before; n > tt.most {
				t.Errorf("%d fetches beside %d destinations without room, want %d at most", n, tt.hanging, tt.most)
			}
		})
	}
}

func TestMaxRateIsHeldExactly(t *testing.T) {
	for _, tt := range []struct {
		name  string
		rate  float64
		burst int
		step  webhooktest.Step
	}{
		{"ten a second", 10, 0, webhooktest.Answer(200)},
		{"three a second", 3, 0, webhooktest.Answer(200)},
		{"with a burst", 10, 7, webhooktest.Answer(200)},
		{"more than a burst at once", 100, 20, webhooktest.Answer(200)},
		{"one a minute", 1. / 60, 0, webhooktest.Answer(200)},
		{"slow answers", 2, 0, webhooktest.Answer(200).After(1200 * time.Millisecond)},
	} {
		inBubble(t, func(t *testing.T, r *rig) {
			q := &fetchCounter{Store: r.queue}
			r.queue = q
			recv := r.network.Receiver(hook, "shh", tt.step)
			d := crm(hook)
			d[0].MaxRate, d[0].MaxBurst = tt.rate, tt.burst
			other, fine := r.receivers("other", 1)
			r.start(webhook.Config{Destinations: append(d, other...)})
			const n = 60
			begin := time.Now()
			r.fill(d, n)
			r.fill(other, n)
			synctest.Wait()
			if got := requests(fine); got != n {
				t.Errorf("%s: %d requests to another", tt.name, got)
			}
			reqs, err := recv.Wait(t.Context(), n)
			must(t, err)
			burst := tt.burst
			if burst == 0 {
				burst = max(int(tt.rate/10), 1)
			}
			for i, q := range reqs {
				want := time.Duration(float64(max(i-burst+1, 0)) / tt.rate * float64(time.Second))
				// The store tells the time to the microsecond.
				if got := q.Time.Sub(begin); got < want || got > want+time.Duration(i+1)*time.Microsecond {
					t.Errorf("%s: request %d after %v, want %v", tt.name, i, got, want)
				}
			}
			if got := q.fetches.Load(); got > 6*n+int64(time.Since(begin)/time.Second) {
				t.Errorf("%s: %d fetches for %d deliveries in %v", tt.name, got, n, time.Since(begin))
			}
		})
	}
}

func TestPauseKeepsDeliveries(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		recv := r.network.Receiver(hook, "shh", webhooktest.Answer(200).After(time.Second))
		r.start(webhook.Config{Destinations: crm(hook)})
		r.fill(crm(hook), 100)
		synctest.Wait()
		begin := time.Now()
		must(t, r.Pause(t.Context(), "crm"))
		r.fill(crm(hook), 100)
		time.Sleep(24 * time.Hour)
		if n, c := len(recv.Requests()), r.counts(); n != 4 || c.Waiting != 196 || c.Claimed != 0 {
			t.Errorf("%d requests, the store holds %+v; want the 4 attempts that were in flight, and the rest to wait", n, c)
		}
		want := []webhook.Held{{Destination: "crm", Hold: webhook.HoldPaused, Since: begin}}
		if d := cmp.Diff(want, r.Held()); d != "" {
			t.Errorf("Held() (-want +got):\n%s", d)
		}
		if err := r.Pause(t.Context(), "crm"); err != nil {
			t.Errorf("a second Pause = %v", err)
		}
		for range 2 {
			if err := r.Resume(t.Context(), "crm"); err != nil {
				t.Error(err)
			}
		}
		time.Sleep(time.Minute)
		if s := r.Stats(); s.Delivered != 200 || len(r.Held()) != 0 {
			t.Errorf("Stats() = %+v, Held() = %+v", s, r.Held())
		}
		for _, err := range []error{r.Pause(t.Context(), "erp"), r.Resume(t.Context(), "erp"), r.Pause(t.Context(), "")} {
			if !errors.Is(err, webhook.ErrUnknownDestination) {
				t.Errorf("of a destination that there is not: %v", err)
			}
		}
	})
}

func TestPauseBeforeRunApplies(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		recv := r.network.Receiver(hook, "")
		f, err := webhook.New(webhook.Config{Store: r.queue, Destinations: crm(hook), DialContext: r.network.DialContext})
		must(t, err)
		must(t, f.Pause(t.Context(), "crm"))
		run := make(chan error, 1)
		go func() { run <- f.Run(context.Background()) }() // ended below
		must(t, f.Forward(t.Context(), "crm", call("m1")))
		time.Sleep(time.Hour) // long enough for the lane to be dropped
		if n := len(recv.Requests()); n != 0 || len(f.Held()) != 1 {
			t.Errorf("%d requests, Held() = %+v", n, f.Held())
		}
		f.Resume(t.Context(), "crm")
		synctest.Wait()
		if n := len(recv.Requests()); n != 1 {
			t.Errorf("%d requests after it", n)
		}
		f.Shutdown(t.Context())
		<-run
	})
}

// A pause survives a restart with the file store: the forwarder that comes after
// attempts nothing of it until Resume.
func TestAPauseSurvivesARestart(t *testing.T) {
	dir := t.TempDir()
	inBubble(t, func(t *testing.T, r *rig) {
		open := func() {
			must(t, r.queue.Close())
			q, err := filequeue.Open(dir, filequeue.Config{})
			must(t, err)
			r.queue = q
		}
		open()
		recv, other := r.network.Receiver(hook, ""), r.network.Receiver("http://erp.example/", "")
		config := webhook.Config{Destinations: append(crm(hook), webhook.Destination{ID: "erp", Endpoints: []webhook.Endpoint{{URL: "http://erp.example/"}}})}
		r.start(config)
		begin := time.Now()
		must(t, r.Pause(t.Context(), "crm"))
		r.track("m1")
		for range 2 {
			r.stop()
			open()
			time.Sleep(time.Minute)
			r.start(config)
			must(t, r.Forward(t.Context(), "erp", call("m2")))
			time.Sleep(time.Hour)
			synctest.Wait()
			want := []webhook.Held{{Destination: "crm", Hold: webhook.HoldPaused, Since: begin.UTC()}}
			if diff := cmp.Diff(want, r.Held()); diff != "" {
				t.Errorf("Held (-want +got)\n%s", diff)
			}
			if n, others := len(recv.Requests()), len(other.Requests()); n != 0 || others != 1 {
				t.Errorf("%d requests to what is paused, %d to another, want 0 and 1", n, others)
			}
		}
		must(t, r.Resume(t.Context(), "crm"))
		r.stop()
		open()
		r.start(config)
		time.Sleep(time.Second)
		synctest.Wait()
		if n := len(recv.Requests()); n != 1 || len(r.Held()) != 0 {
			t.Errorf("%d requests after Resume, Held = %+v", n, r.Held())
		}
	})
}

// A delivery whose window ends while its destination is not to be used gets one
// more attempt.
func TestDeliveryGetsALastAttemptIfItsRetryWindowEndsInAPause(t *testing.T) {
	for _, tt := range []struct {
		name     string
		disabled bool
		after    int // the status after the pause
		dead     webhook.Reason
	}{
		{"paused, and taken", false, 200, ""},
		{"paused, and fails", false, 503, webhook.ReasonExpired},
		{"paused, and refused", false, 400, webhook.ReasonRefused},
		{"disabled, and taken", true, 200, ""},
		{"disabled, and fails", true, 503, webhook.ReasonExpired},
	} {
		inBubble(t, func(t *testing.T, r *rig) {
			recv := r.network.Receiver(hook, "shh", webhooktest.Answer(503).Times(3), webhooktest.Answer(tt.after))
			var current atomic.Pointer[webhook.Destination]
			on, off := crm(hook)[0], crm(hook)[0]
			off.Disabled = true
			current.Store(&on)
			r.start(webhook.Config{Lookup: func(context.Context, string) (*webhook.Destination, error) { return current.Load(), nil }})
			r.track("m1")
			if _, err := recv.Wait(t.Context(), 3); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if tt.disabled {
				current.Store(&off)
			} else if err := r.Pause(t.Context(), "crm"); err != nil {
				t.Fatal(err)
			}
			time.Sleep(6 * time.Hour)
			hold := webhook.HoldPaused
			if tt.disabled {
				hold = webhook.HoldDisabled
			}
			if h := r.Held(); len(h) != 1 || h[0].Hold != hold {
				t.Errorf("%s: Held() = %+v", tt.name, h)
			}
			if n, c := len(recv.Requests()), r.counts(); n != 3 || c.Waiting != 1 {
				t.Fatalf("%s: %d requests, the store holds %+v", tt.name, n, c)
			}
			current.Store(&on)
			r.Resume(t.Context(), "crm")
			time.Sleep(time.Minute)
			if n := len(recv.Requests()); n != 4 {
				t.Errorf("%s: %d requests, want one more than 3", tt.name, n)
			}
			if s := r.Stats(); tt.dead == "" && s.Delivered != 1 || tt.dead != "" && s.Dead[tt.dead] != 1 {
				t.Errorf("%s: Stats() = %+v", tt.name, s)
			}
		})
	}
}

func TestHeldNamesTheReasonOfEachHold(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.network.Receiver("http://down.example/", "", webhooktest.Refuse())
		r.network.Receiver("http://fine.example/", "")
		to := func(id, u string) *webhook.Destination {
			return &webhook.Destination{ID: id, Endpoints: []webhook.Endpoint{{URL: u}}}
		}
		r.start(webhook.Config{Lookup: func(_ context.Context, id string) (*webhook.Destination, error) {
			switch id {
			case "away":
				return nil, errAway
			case "disabled":
				d := to(id, "http://fine.example/")
				d.Disabled = true
				return d, nil
			case "down", "fine":
				return to(id, "http://"+id+".example/"), nil
			case "invalid":
				return to(id, "gopher://x"), nil
			}
			return nil, webhook.ErrUnknownDestination
		}})
		ids := []string{"away", "disabled", "down", "fine", "invalid", "paused", "unknown"}
		r.Pause(t.Context(), "paused")
		for _, id := range ids {
			r.fill([]webhook.Destination{{ID: id}}, 20)
		}
		time.Sleep(45 * time.Second)
		got := map[string]webhook.Hold{}
		last := ""
		for _, h := range r.Held() {
			got[h.Destination] = h.Hold
			if h.Destination <= last {
				t.Errorf("%s comes after %s", h.Destination, last)
			}
			last = h.Destination
			if h.Hold != webhook.HoldFailing && (h.Hold != webhook.HoldPaused) != h.Until.After(time.Now()) {
				t.Errorf("%s waits until %v", h.Destination, h.Until)
			}
			if want := map[bool]webhook.Reason{true: webhook.ReasonConnection}[h.Hold == webhook.HoldFailing]; h.Reason != want {
				t.Errorf("%s waits for the reason %q, want %q", h.Destination, h.Reason, want)
			}
		}
		want := map[string]webhook.Hold{
			"away": webhook.HoldLookup, "disabled": webhook.HoldDisabled, "down": webhook.HoldFailing, "invalid": webhook.HoldInvalid,
			"paused": webhook.HoldPaused, "unknown": webhook.HoldUnknown,
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("Held() (-want +got):\n%s", d)
		}
	})
}

// A claimedBytes knows the bytes of the bodies that are claimed.
type claimedBytes struct {
	webhook.Store
	mu          sync.Mutex
	bytes, most int
	claimed     map[uint64]int
}

func (q *claimedBytes) Put(ctx context.Context, ps []webhook.Put, out []webhook.Result) error {
	err := q.Store.Put(ctx, ps, out)
	for i := range out {
		if out[i].Claim != 0 {
			q.claim(out[i].Claim, len(ps[i].Body))
		}
	}
	return err
}

func (q *claimedBytes) Fetch(ctx context.Context, wants []webhook.Want, maxBytes int64, dst []webhook.Delivery) ([]webhook.Delivery, error) {
	ds, err := q.Store.Fetch(ctx, wants, maxBytes, dst)
	for _, d := range ds[len(dst):] {
		q.claim(d.Claim, len(d.Body))
	}
	return ds, err
}

func (q *claimedBytes) claim(claim uint64, size int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.claimed[claim] = size
	q.bytes += size
	q.most = max(q.most, q.bytes)
}

func (q *claimedBytes) Settle(ctx context.Context, ss []webhook.Settlement) (int, error) {
	q.mu.Lock()
	for _, s := range ss {
		q.bytes -= q.claimed[s.Delivery.Claim]
		delete(q.claimed, s.Delivery.Claim)
	}
	q.mu.Unlock()
	return q.Store.Settle(ctx, ss)
}

func TestBytesInFlightAreBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		const size, bound = 64 << 10, 512 << 10
		q := &claimedBytes{Store: r.queue, claimed: make(map[uint64]int)}
		r.queue = q
		big, _ := r.receivers("big", 1, webhooktest.Answer(200).After(time.Second))
		small, fine := r.receivers("small", 1, webhooktest.Answer(200).After(10*time.Millisecond))
		r.start(webhook.Config{Destinations: append(big, small...), MaxBytesInFlight: bound})
		for i := range 50 {
			e := event.Event{ID: fmt.Sprint("big", i), Type: "track", Body: bytes.Repeat([]byte("1"), size), Received: time.Now()}
			must(t, r.ForwardEvents(t.Context(), []string{"big0"}, e))
		}
		time.Sleep(2500 * time.Millisecond)
		begin := time.Now()
		r.fill(small, 500)
		if _, err := fine[0].Wait(t.Context(), 500); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(begin); d > 3*time.Second {
			t.Errorf("500 small deliveries take %v beside big ones", d)
		}
		time.Sleep(time.Minute)
		if s := r.Stats(); s.Delivered != 550 {
			t.Errorf("Stats() = %+v", s)
		}
		q.mu.Lock()
		defer q.mu.Unlock()
		if q.most > 2*bound { // as many may be on their way to be settled
			t.Errorf("%d bytes in flight, the bound is %d", q.most, bound)
		}
	})
}
