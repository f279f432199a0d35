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
	"github.com/hookferry/analytics/internal/soakenv"
	"github.com/hookferry/analytics/step"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/filequeue"
	"github.com/hookferry/analytics/webhook/store"
	"github.com/hookferry/analytics/webhook/webhooktest"
)

// receivers adds n receivers that follow script, and returns a destination for each. The ids are
// name and a number.
func (r *rig) receivers(name string, n int, script ...step.Step) ([]webhook.Destination, []*webhooktest.Receiver) {
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

// fill forwards n events to each destination in ds.
func (r *rig) fill(ds []webhook.Destination, n int) {
	r.t.Helper()
	for _, d := range ds {
		var events []event.Event
		for i := range n {
			id := fmt.Sprint(d.ID, "-", r.events.Add(1), "-", i)
			events = append(events, event.Event{ID: id, Type: "track", Body: []byte(`{"messageId":"` + id + `"}`), Received: time.Now()})
		}
		if err := r.ForwardEvents(r.tracking(), []string{d.ID}, events...); err != nil {
			r.t.Fatal(err)
		}
	}
}

// requests returns how many requests all receivers have got.
func requests(recvs []*webhooktest.Receiver) int {
	n := 0
	for _, recv := range recvs {
		n += len(recv.Requests())
	}
	return n
}

// Many destinations begin to hang at the same time. Deliveries to the healthy destinations take as
// long as without them, from the first second on. "new" destinations hang from their first request
// on. "known" ones have answered some deliveries before, and "draining" ones are working off a
// backlog.
func TestManyThatHangAtOnceDelayNoOther(t *testing.T) {
	const healthy = 8
	slots, each, backlog := 8, 250, 2000
	if soakenv.On() {
		slots, each, backlog = 16, 500, 8000
	}
	took := func(seed uint64, hanging int, how string) (d time.Duration) {
		inBubble(t, func(t *testing.T, r *rig) {
			webhook.SeedJitter(seed)
			good, _ := r.receivers("fine", healthy, step.Answer(200).After(10*time.Millisecond))
			for i := range good {
				good[i].MaxConcurrent = slots
			}
			script := step.Answer(200).After(10 * time.Millisecond)
			if how == "new" {
				script = step.Hang()
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
				recv.SetScript(step.Hang())
			}
			r.fill(bad, 80)
			synctest.Wait() // until the destinations that hang are saturated
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
			if n := requests(sick) - before; n > hanging*(12+32) { // one attempt at a time, and one for each slot as the first attempts time out
				t.Errorf("got %d attempts within a minute at %d destinations that hang, want at most %d", n, hanging, hanging*(12+32))
			}
		})
		return d
	}
	crowds := []struct {
		hanging int
		how     string
		most    float64 // the allowed ratio to the time without them; one more answer adds 1/30
		soak    bool    // only run in a soak
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
	for seed := range soakenv.Seeds(t, 1) {
		// The time without them is measured for each case, because the concurrency of a lane depends on
		// how long it has been idle.
		alone := map[string]time.Duration{}
		for _, how := range []string{"new", "known", "draining"} {
			alone[how] = took(seed, 0, how)
		}
		for _, tt := range crowds {
			if tt.soak && !soakenv.On() {
				continue
			}
			d := took(seed, tt.hanging, tt.how)
			alone := alone[tt.how]
			ratio := d.Seconds() / alone.Seconds()
			t.Logf("%d %s destinations hang: %v instead of %v, %.2f times as long", tt.hanging, tt.how, d, alone, ratio)
			if ratio > tt.most {
				t.Errorf("seed %d, %d %s destinations hang: %d deliveries to others took %v, want at most %.2f times the %v without them",
					seed, tt.hanging, tt.how, healthy*each, d, tt.most, alone)
			}
		}
	}
}

// The retry window of a delivery begins with its first attempt. While a destination is down, most
// of its deliveries wait in the store unattempted. All are delivered after an outage that is
// shorter than a retry window.
func TestRetryWindowBeginsAtTheFirstAttempt(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		const waiting = 5000
		recv := r.network.Receiver(hook, "shh", step.Answer(503))
		r.start(webhook.Config{Destinations: crm(hook)})
		r.fill(crm(hook), waiting)
		time.Sleep(time.Minute)
		if n := len(recv.Requests()); n > 90 {
			t.Errorf("got %d requests in the first minute, want at most 90", n)
		}
		time.Sleep(time.Hour - time.Minute)
		if n := len(recv.Requests()); n > 800 {
			t.Errorf("got %d requests in the first hour, want at most 800", n)
		}
		time.Sleep(2*time.Hour + 50*time.Minute)
		recv.SetScript(step.Answer(200))
		time.Sleep(time.Minute)
		if s := r.Stats(); s.Delivered < waiting-100 {
			t.Errorf("Stats() = %+v a minute after the outage, want at least %d delivered, all but retries that are not due", s, waiting-100)
		}
		time.Sleep(10 * time.Minute)
		if s := r.Stats(); s.Delivered != waiting || len(r.dead()) > 0 {
			t.Errorf("Stats() = %+v ten minutes later, want %d delivered and no dead letter", s, waiting)
		}
		if c := r.counts(); c.Waiting != 0 {
			t.Errorf("the store has %+v, want none waiting", c)
		}
	})
}

// While the breaker of a destination is open, its deliveries that were attempted keep their retry
// schedule, up to the last attempt of the retry window.
func TestBreakerKeepsTheRetrySchedule(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		const n = 20
		recv := r.network.Receiver(hook, "shh", step.Answer(503))
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
				t.Errorf("an attempt starts %v after the first, want at most 4 h", d)
			}
			last[id] = q.Time
		}
		if len(first) != n {
			t.Errorf("%d of %d deliveries were attempted, want all", len(first), n)
		}
		for id := range first {
			if d := first[id].Sub(begin); d > 20*time.Minute {
				t.Errorf("a first attempt starts after %v, want at most 20 min", d)
			}
			if d := last[id].Sub(first[id]); d < 4*time.Hour-6*time.Second {
				t.Errorf("the last attempt is %v after the first, want about 4 h", d)
			}
		}
		for _, d := range r.dead() {
			if d.Reason != webhook.ReasonExpired || d.Tries < 20 {
				t.Errorf("%s: got the reason %q after %d attempts, want %q after at least 20", d.ID, d.Reason, d.Tries, webhook.ReasonExpired)
			}
		}
		if s := r.Stats(); s.Dead[webhook.ReasonExpired] != n {
			t.Errorf("Stats() = %+v, want %d expired", s, n)
		}
	})
}

// If a destination fails for a whole retry window, the deliveries that waited all that time become
// dead letters. Deliveries that have waited for less when the destination recovers are delivered.
func TestDeliveriesExpireAfterARetryWindowOfFailures(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		const n = 2000
		recv := r.network.Receiver(hook, "shh", step.Refuse())
		r.start(webhook.Config{Destinations: crm(hook)})
		r.fill(crm(hook), n)
		time.Sleep(3 * time.Hour)
		r.fill(crm(hook), n)
		time.Sleep(time.Hour - time.Second)
		if c := r.counts(); c.Dead > 20 {
			t.Errorf("before the first retry window ends: the store has %+v, want at most 20 dead", c)
		}
		time.Sleep(10 * time.Minute)
		// Deliveries that were attempted as probes have later retry windows of their own.
		if c := r.counts(); c.Dead < n/2 || c.Waiting > n+n/2 {
			t.Errorf("after the first retry window: the store has %+v, want at least %d dead and at most %d waiting", c, n/2, n+n/2)
		}
		for _, d := range r.dead() {
			if d.Reason != webhook.ReasonExpired {
				t.Fatalf("%s: got the reason %q, want %q", d.ID, d.Reason, webhook.ReasonExpired)
			}
		}
		recv.SetScript(step.Answer(200))
		time.Sleep(11 * time.Minute) // the longest wait of a retry and of a probe
		if c := r.counts(); c.Waiting != 0 || len(recv.Requests()) < n {
			t.Errorf("after the recovery: the store has %+v after %d requests, want none waiting and at least one request for each", c, len(recv.Requests()))
		}
	})
}

// A destination that refuses deliveries still answers, so it does not count as failing.
func TestRefusalsDoNotOpenTheBreaker(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.network.Receiver(hook, "shh", step.Answer(400))
		r.start(webhook.Config{Destinations: crm(hook)})
		r.fill(crm(hook), 500)
		time.Sleep(time.Second) // outcomes are stored together
		if s := r.Stats(); s.Dead[webhook.ReasonRefused] != 500 || len(r.Held()) != 0 {
			t.Errorf("Stats() = %+v, Held() = %+v; want 500 refused and none held", s, r.Held())
		}
	})
}

// A destination with one endpoint that hangs and one that answers is not held, and its deliveries
// are not delayed.
func TestADeadEndpointBesideOthersDoesNotOpenTheBreaker(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		const dead = "http://dead.example/"
		r.network.Receiver(dead, "shh", step.Hang())
		fine := r.network.Receiver(hook, "shh")
		r.start(webhook.Config{Destinations: crm(dead, hook)})
		begin := time.Now()
		r.fill(crm(hook), 1000)
		if _, err := fine.Wait(t.Context(), 1000); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(begin); d > 0 || len(r.Held()) != 0 {
			t.Errorf("1000 deliveries took %v, Held() = %+v; want no time and none held", d, r.Held())
		}
	})
}

// A fetchCounter is a store that counts fetches. Each fetch takes some time. Put never claims a
// delivery for its caller, so each delivery has to be fetched.
type fetchCounter struct {
	webhook.Store
	fetches atomic.Int64
	took    time.Duration // by each fetch
}

func (q *fetchCounter) Put(ctx context.Context, ps []store.Put, out []store.Result) error {
	ps = slices.Clone(ps)
	for i := range ps {
		ps[i].Keep = false
	}
	return q.Store.Put(ctx, ps, out)
}

func (q *fetchCounter) Fetch(ctx context.Context, wants []store.Want, maxBytes int64, dst []webhook.Delivery) ([]webhook.Delivery, error) {
	q.fetches.Add(1)
	time.Sleep(q.took)
	return q.Store.Fetch(ctx, wants, maxBytes, dst)
}

// A delivery that is put during a fetch is fetched right after it, however long that fetch takes.
func TestDeliveryPutDuringAFetchIsFetchedNext(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		const took = 10 * time.Millisecond
		r.queue = &fetchCounter{Store: r.queue, took: took}
		recv := r.network.Receiver(hook, "shh")
		r.start(webhook.Config{Destinations: crm(hook)})
		synctest.Wait() // until Run is idle
		for i := range 10 {
			begin := time.Now()
			r.fill(crm(hook), 1)
			if _, err := recv.Wait(t.Context(), i+1); err != nil {
				t.Fatal(err)
			}
			if d := time.Since(begin); d > 2*took {
				t.Errorf("delivery %d took %v, want at most the %v of two fetches", i, d, 2*took)
			}
		}
	})
}

// A fetch for each of thousands of saturated destinations, again and again, would occupy a
// processor.
func TestSaturatedDestinationsCauseNoExtraFetches(t *testing.T) {
	for _, tt := range []struct {
		hanging int
		most    int64 // fetches in a second, in which a healthy destination gets 1000 deliveries
	}{
		{100, 1100},
		{3000, 1100},
	} {
		inBubble(t, func(t *testing.T, r *rig) {
			q := &fetchCounter{Store: r.queue}
			r.queue = q
			good, _ := r.receivers("fine", 1)
			bad, _ := r.receivers("sick", tt.hanging, step.Hang())
			r.start(webhook.Config{Destinations: append(bad, good...), MaxInFlight: 64})
			r.fill(bad, 5)
			time.Sleep(time.Second)
			before := q.fetches.Load()
			for range 1000 {
				r.fill(good, 1)
				time.Sleep(time.Millisecond)
			}
			if n := q.fetches.Load() - before; n > tt.most {
				t.Errorf("got %d fetches beside %d saturated destinations, want at most %d", n, tt.hanging, tt.most)
			}
		})
	}
}

func TestMaxRateIsHeldExactly(t *testing.T) {
	for _, tt := range []struct {
		name  string
		rate  float64
		burst int
		step  step.Step
	}{
		{"ten a second", 10, 0, step.Answer(200)},
		{"three a second", 3, 0, step.Answer(200)},
		{"with a burst", 10, 7, step.Answer(200)},
		{"more deliveries than a burst", 100, 20, step.Answer(200)},
		{"one a minute", 1. / 60, 0, step.Answer(200)},
		{"slow answers", 2, 0, step.Answer(200).After(1200 * time.Millisecond)},
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
				t.Errorf("%s: got %d requests to a destination without MaxRate, want %d", tt.name, got, n)
			}
			reqs, err := recv.Wait(t.Context(), n)
			must(t, err)
			burst := tt.burst
			if burst == 0 {
				burst = max(int(tt.rate/10), 1)
			}
			for i, q := range reqs {
				want := time.Duration(float64(max(i-burst+1, 0)) / tt.rate * float64(time.Second))
				// The store truncates times to microseconds.
				if got := q.Time.Sub(begin); got < want || got > want+time.Duration(i+1)*time.Microsecond {
					t.Errorf("%s: request %d is sent after %v, want %v", tt.name, i, got, want)
				}
			}
			if got := q.fetches.Load(); got > 6*n+int64(time.Since(begin)/time.Second) {
				t.Errorf("%s: got %d fetches for %d deliveries in %v, want at most 6 for each and 1 a second", tt.name, got, n, time.Since(begin))
			}
		})
	}
}

func TestPauseKeepsDeliveries(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		recv := r.network.Receiver(hook, "shh", step.Answer(200).After(time.Second))
		r.start(webhook.Config{Destinations: crm(hook)})
		r.fill(crm(hook), 100)
		synctest.Wait()
		begin := time.Now()
		must(t, r.Pause(t.Context(), "crm"))
		r.fill(crm(hook), 100)
		time.Sleep(24 * time.Hour)
		if n, c := len(recv.Requests()), r.counts(); n != 4 || c.Waiting != 196 || c.Claimed != 0 {
			t.Errorf("got %d requests, the store has %+v; want the 4 attempts that were in flight, and 196 waiting", n, c)
		}
		want := []webhook.Hold{{Destination: "crm", Kind: webhook.HoldPaused, Since: begin}}
		if d := cmp.Diff(want, r.Held()); d != "" {
			t.Errorf("Held() (-want +got):\n%s", d)
		}
		if err := r.Pause(t.Context(), "crm"); err != nil {
			t.Errorf("a second Pause() = %v, want nil", err)
		}
		for range 2 {
			if err := r.Resume(t.Context(), "crm"); err != nil {
				t.Error(err)
			}
		}
		time.Sleep(time.Minute)
		if s := r.Stats(); s.Delivered != 200 || len(r.Held()) != 0 {
			t.Errorf("Stats() = %+v, Held() = %+v; want 200 delivered and none held", s, r.Held())
		}
		for _, err := range []error{r.Pause(t.Context(), "erp"), r.Resume(t.Context(), "erp"), r.Pause(t.Context(), "")} {
			if !errors.Is(err, webhook.ErrUnknownDestination) {
				t.Errorf("Pause() or Resume() of an unknown destination = %v, want ErrUnknownDestination", err)
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
			t.Errorf("got %d requests in the pause, Held() = %+v; want none, and one held", n, f.Held())
		}
		f.Resume(t.Context(), "crm")
		synctest.Wait()
		if n := len(recv.Requests()); n != 1 {
			t.Errorf("got %d requests after Resume, want 1", n)
		}
		f.Shutdown(t.Context())
		<-run
	})
}

// A pause is stored, so it survives a restart with the file store. The forwarder sends no request
// to the destination until Resume.
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
			want := []webhook.Hold{{Destination: "crm", Kind: webhook.HoldPaused, Since: begin.UTC()}}
			if diff := cmp.Diff(want, r.Held()); diff != "" {
				t.Errorf("Held() (-want +got):\n%s", diff)
			}
			if n, others := len(recv.Requests()), len(other.Requests()); n != 0 || others != 1 {
				t.Errorf("got %d requests to the paused destination and %d to the other, want 0 and 1", n, others)
			}
		}
		must(t, r.Resume(t.Context(), "crm"))
		r.stop()
		open()
		r.start(config)
		time.Sleep(time.Second)
		synctest.Wait()
		if n := len(recv.Requests()); n != 1 || len(r.Held()) != 0 {
			t.Errorf("got %d requests after Resume, Held() = %+v; want 1, and none held", n, r.Held())
		}
	})
}

// A destination can be paused again after Resume. A week later the store keeps nothing of its pauses.
func TestNothingIsLeftOfAPauseAWeekAfterResume(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		recv := r.network.Receiver(hook, "")
		r.start(webhook.Config{Destinations: crm(hook)})
		for i := range 2 {
			must(t, r.Pause(t.Context(), "crm"))
			must(t, r.Pause(t.Context(), "crm"))
			r.track(fmt.Sprint("m", i))
			time.Sleep(time.Hour)
			if n := len(recv.Requests()); n != i || len(r.Held()) != 1 {
				t.Errorf("got %d requests in the pause, Held() = %+v; want %d, and one held", n, r.Held(), i)
			}
			must(t, r.Resume(t.Context(), "crm"))
			must(t, r.Resume(t.Context(), "crm"))
			time.Sleep(time.Second)
			if n := len(recv.Requests()); n != i+1 || len(r.Held()) != 0 {
				t.Errorf("got %d requests after Resume, Held() = %+v; want %d, and none held", n, r.Held(), i+1)
			}
		}
		time.Sleep(7*24*time.Hour + time.Second)
		if left := collect(t, r.queue.Documents(t.Context(), "pause", "")); len(left) > 0 {
			t.Errorf("the store has the documents %v, want none", left)
		}
	})
}

// If the retry window of a delivery ends while its destination is paused or disabled, the delivery
// gets one more attempt afterwards.
func TestDeliveryGetsALastAttemptIfItsRetryWindowEndsInAPause(t *testing.T) {
	for _, tt := range []struct {
		name     string
		disabled bool
		restart  bool           // between Resume and the next attempt
		after    int            // the status that the receiver answers after the pause
		dead     webhook.Reason // of the dead letter; "" if the event is delivered
	}{
		{"paused, then delivered", false, false, 200, ""},
		{"paused, then fails", false, false, 503, webhook.ReasonExpired},
		{"paused, then refused", false, false, 400, webhook.ReasonRefused},
		{"paused, restarted, then delivered", false, true, 200, ""},
		{"paused, restarted, then fails", false, true, 503, webhook.ReasonExpired},
		{"disabled, then delivered", true, false, 200, ""},
		{"disabled, then fails", true, false, 503, webhook.ReasonExpired},
	} {
		inBubble(t, func(t *testing.T, r *rig) {
			recv := r.network.Receiver(hook, "shh", step.Answer(503).Times(3), step.Answer(tt.after))
			var current atomic.Pointer[webhook.Destination]
			on, off := crm(hook)[0], crm(hook)[0]
			off.Disabled = true
			current.Store(&on)
			r.start(webhook.Config{Directory: lookup(func(context.Context, string) (*webhook.Destination, error) { return current.Load(), nil })})
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
			if h := r.Held(); len(h) != 1 || h[0].Kind != hold {
				t.Errorf("%s: Held() = %+v, want one destination with the hold %q", tt.name, h, hold)
			}
			if n, c := len(recv.Requests()), r.counts(); n != 3 || c.Waiting != 1 {
				t.Fatalf("%s: got %d requests, the store has %+v; want 3 requests and 1 waiting", tt.name, n, c)
			}
			current.Store(&on)
			if tt.restart {
				r.stop()
				f, err := webhook.New(r.config) // whose Run is not called
				must(t, err)
				must(t, f.Resume(t.Context(), "crm"))
				time.Sleep(6 * 24 * time.Hour)
				r.start(r.config)
			} else {
				must(t, r.Resume(t.Context(), "crm"))
			}
			time.Sleep(time.Minute)
			if n := len(recv.Requests()); n != 4 {
				t.Errorf("%s: got %d requests, want 4", tt.name, n)
			}
			if s := r.Stats(); tt.dead == "" && s.Delivered != 1 || tt.dead != "" && s.Dead[tt.dead] != 1 {
				t.Errorf("%s: Stats() = %+v, want 1 delivered, or 1 dead with the reason %q", tt.name, s, tt.dead)
			}
		})
	}
}

func TestHeldNamesTheReasonOfEachHold(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.network.Receiver("http://down.example/", "", step.Refuse())
		r.network.Receiver("http://fine.example/", "")
		to := func(id, u string) *webhook.Destination {
			return &webhook.Destination{ID: id, Endpoints: []webhook.Endpoint{{URL: u}}}
		}
		r.start(webhook.Config{Directory: attempted(func(_ context.Context, id string) (*webhook.Destination, error) {
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
		})})
		ids := []string{"away", "disabled", "down", "fine", "invalid", "paused", "unknown"}
		r.Pause(t.Context(), "paused")
		for _, id := range ids {
			r.fill([]webhook.Destination{{ID: id}}, 20)
		}
		time.Sleep(45 * time.Second)
		got := map[string]webhook.HoldKind{}
		last := ""
		for _, h := range r.Held() {
			got[h.Destination] = h.Kind
			if h.Destination <= last {
				t.Errorf("Held() has %s after %s, want them sorted", h.Destination, last)
			}
			last = h.Destination
			if h.Kind != webhook.HoldFailing && (h.Kind != webhook.HoldPaused) != h.Until.After(time.Now()) {
				t.Errorf("%s: Until is %v, want a later time, or none if it is paused", h.Destination, h.Until)
			}
			if want := map[bool]webhook.Reason{true: webhook.ReasonConnection}[h.Kind == webhook.HoldFailing]; h.Reason != want {
				t.Errorf("%s: Reason is %q, want %q", h.Destination, h.Reason, want)
			}
		}
		want := map[string]webhook.HoldKind{
			"away": webhook.HoldLookup, "disabled": webhook.HoldDisabled, "down": webhook.HoldFailing, "invalid": webhook.HoldInvalid,
			"paused": webhook.HoldPaused, "unknown": webhook.HoldUnknown,
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("Held() (-want +got):\n%s", d)
		}
	})
}

// While a destination fails, Until says when its next attempt begins. It says nothing while an
// attempt is in flight.
func TestUntilIsTheNextAttemptOfAFailingDestination(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		recv := r.network.Receiver(hook, "", step.Hang())
		r.start(webhook.Config{Destinations: crm(hook)})
		r.track("m1")
		time.Sleep(time.Hour)
		for range 5 {
			began := len(recv.Requests())
			recv.Wait(t.Context(), began+1)
			synctest.Wait()
			if h := r.Held(); len(h) != 1 || !h[0].Until.IsZero() {
				t.Errorf("Held() = %+v during an attempt, want one without Until", h)
			}
			time.Sleep(webhook.DefaultTimeout + time.Millisecond)
			synctest.Wait()
			until := r.Held()[0].Until
			began = len(recv.Requests())
			time.Sleep(time.Until(until) - time.Millisecond)
			synctest.Wait()
			early := len(recv.Requests()) - began
			time.Sleep(2 * time.Millisecond)
			synctest.Wait()
			if n := len(recv.Requests()) - began; early != 0 || n != 1 {
				t.Errorf("%d requests before Until and %d soon after it, want none and one", early, n)
			}
			time.Sleep(webhook.DefaultTimeout)
		}
	})
}

// A claimedBytes is a store that adds up the bytes of all claimed bodies.
type claimedBytes struct {
	webhook.Store
	mu          sync.Mutex
	bytes, most int            // claimed now, and the maximum so far
	claimed     map[uint64]int // bytes, by claim
}

func (q *claimedBytes) Put(ctx context.Context, ps []store.Put, out []store.Result) error {
	err := q.Store.Put(ctx, ps, out)
	for i := range out {
		if out[i].Claim != 0 {
			q.claim(out[i].Claim, len(ps[i].Body))
		}
	}
	return err
}

func (q *claimedBytes) Fetch(ctx context.Context, wants []store.Want, maxBytes int64, dst []webhook.Delivery) ([]webhook.Delivery, error) {
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

func (q *claimedBytes) Settle(ctx context.Context, ss []store.Settlement) (int, error) {
	q.mu.Lock()
	for _, s := range ss {
		q.bytes -= q.claimed[s.Delivery.Claim]
		delete(q.claimed, s.Delivery.Claim)
	}
	q.mu.Unlock()
	return q.Store.Settle(ctx, ss)
}

// Small deliveries are not delayed while big ones use the whole bound.
func TestBytesInFlightAreBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		const size, bound = 64 << 10, 512 << 10
		q := &claimedBytes{Store: r.queue, claimed: make(map[uint64]int)}
		r.queue = q
		big, _ := r.receivers("big", 1, step.Answer(200).After(time.Second))
		small, fine := r.receivers("small", 1, step.Answer(200).After(10*time.Millisecond))
		r.start(webhook.Config{Destinations: append(big, small...), MaxBytesInFlight: bound})
		for i := range 50 {
			e := event.Event{ID: fmt.Sprint("big", i), Type: "track", Body: append(append([]byte(`{"x":"`), bytes.Repeat([]byte("1"), size-8)...), `"}`...), Received: time.Now()}
			must(t, r.ForwardEvents(t.Context(), []string{"big0"}, e))
		}
		time.Sleep(2500 * time.Millisecond)
		begin := time.Now()
		r.fill(small, 500)
		if _, err := fine[0].Wait(t.Context(), 500); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(begin); d > 3*time.Second {
			t.Errorf("500 small deliveries took %v beside big ones, want at most 3 s", d)
		}
		time.Sleep(time.Minute)
		if s := r.Stats(); s.Delivered != 550 {
			t.Errorf("Stats() = %+v, want 550 delivered", s)
		}
		q.mu.Lock()
		defer q.mu.Unlock()
		if q.most > 2*bound { // the other half may be about to be settled
			t.Errorf("got up to %d bytes in flight, want at most %d, twice the bound", q.most, 2*bound)
		}
	})
}
