package main

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/internal/soak"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/memqueue"
	"github.com/hookferry/analytics/webhook/webhooktest"
)

// A sample is the state at the end of a minute.
type sample struct {
	waiting      int // includes deliveries that are being attempted
	done, failed int // attempts so far
}

// A forwarding is a webhook.Forwarder that runs in virtual time with a store and a network
// in memory.
type forwarding struct {
	*webhook.Forwarder
	t       *testing.T
	network *webhooktest.Network
	store   webhook.Store
	began   time.Time
	ids     int
	run     chan error
}

// forward starts a forwarding in a bubble, and calls do. receivers[i] receives for destinations[i].
func forward(t *testing.T, destinations []webhook.Destination, receivers []receiver, do func(f *forwarding)) {
	synctest.Test(t, func(t *testing.T) {
		f := &forwarding{t: t, network: webhooktest.NewNetwork(), store: memqueue.New(memqueue.Config{}), began: time.Now(), run: make(chan error, 1)}
		defer f.network.Close()
		defer f.store.Close()
		for i := range destinations {
			d, r := &destinations[i], &receivers[i]
			u := "http://" + d.ID + ".example/"
			d.Endpoints = []webhook.Endpoint{{URL: u}}
			var mu sync.Mutex // guards random
			random := rand.New(rand.NewPCG(3, uint64(i)))
			f.network.Receiver(u, "", webhooktest.Do(func(*webhooktest.Request) webhooktest.Step {
				mu.Lock()
				pace, took := r.attempt(time.Since(f.began), webhook.DefaultTimeout, random)
				mu.Unlock()
				switch pace {
				case answered:
					return webhooktest.Answer(200).After(took)
				case failing:
					return webhooktest.Answer(503).After(took)
				}
				return webhooktest.Hang()
			}))
		}
		var err error
		f.Forwarder, err = webhook.New(webhook.Config{Store: f.store, Destinations: destinations, DialContext: f.network.DialContext})
		if err != nil {
			t.Fatal(err)
		}
		go func() { f.run <- f.Run(context.Background()) }() // ended below
		do(f)
		if err := f.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		if err := <-f.run; err != nil {
			t.Error(err)
		}
	})
}

// A meter counts the bytes that are written to connections.
type meter struct {
	net.Conn
	written *atomic.Int64
}

func (m meter) Write(b []byte) (int, error) {
	m.written.Add(int64(len(b)))
	return m.Conn.Write(b)
}

// TestBytesOfARequest compares head with the bytes that the forwarder sends before a body.
func TestBytesOfARequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := webhooktest.NewNetwork()
		defer network.Close()
		const u = "http://hooks.customer.example/webhooks/v1/in"
		crm := network.Receiver(u, "shh")
		var written atomic.Int64
		queue := memqueue.New(memqueue.Config{})
		defer queue.Close()
		f, err := webhook.New(webhook.Config{
			Store:        queue,
			Destinations: []webhook.Destination{{ID: "crm", Secret: "shh", Endpoints: []webhook.Endpoint{{URL: u}}}},
			DialContext: func(ctx context.Context, kind, address string) (net.Conn, error) {
				c, err := network.DialContext(ctx, kind, address)
				return meter{c, &written}, err
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		body := []byte(`{"x":"` + strings.Repeat("x", 450-8) + `"}`)
		if err := f.ForwardEvents(t.Context(), []string{"crm"}, event.Event{ID: "m1", Type: "track", Body: body, Received: time.Now()}); err != nil {
			t.Fatal(err)
		}
		run := make(chan error, 1)
		go func() { run <- f.Run(context.Background()) }() // ended below
		if _, err := crm.Wait(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		f.Shutdown(t.Context())
		if err := <-run; err != nil {
			t.Error(err)
		}
		if got := int(written.Load()) - len(body); got < head-10 || got > head {
			t.Errorf("a request has %d bytes beside its body, want %d to %d as planned", got, head-10, head)
		}
	})
}

// until waits until at, counted from the start.
func (f *forwarding) until(at time.Duration) { time.Sleep(time.Until(f.began.Add(at))) }

// event forwards an event to a destination.
func (f *forwarding) event(destination string) {
	f.ids++
	e := event.Event{ID: fmt.Sprint("m", f.ids), Type: "track", Body: []byte(`{}`), Received: time.Now()}
	if err := f.ForwardEvents(context.Background(), []string{destination}, e); err != nil {
		f.t.Fatal(err)
	}
}

func (f *forwarding) sample() sample {
	c, err := f.store.Count(context.Background())
	if err != nil {
		f.t.Fatal(err)
	}
	s := f.Stats()
	return sample{c.Waiting, int(s.Delivered), int(s.Retried)}
}

// TestModelDoesWhatTheForwarderDoes compares the simulation with a webhook.Forwarder. The same seed
// may give slightly different results, because the forwarder's jitter has no seed.
func TestModelDoesWhatTheForwarderDoes(t *testing.T) {
	soak.Only(t, "scaling")
	for seed := range soak.Seeds(t, 1) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			for _, hangs := range []bool{false, true} {
				t.Run(fmt.Sprint("cell/hangs=", hangs), func(t *testing.T) { compareCell(t, hangs) })
			}
			for _, c := range laneCases {
				t.Run("lane/"+c.name, func(t *testing.T) { c.compare(t, seed) })
			}
		})
	}
}

// A laneCase is an outage of one destination.
type laneCase struct {
	name    string
	rate    float64 // arrivals per second
	latency time.Duration
	limit   int
	maxRate float64
	hangs   bool
	outage  time.Duration
	after   time.Duration
	waiting float64 // tolerance for deliveries waiting and done, as a share of the most that wait
	failed  float64 // tolerance for failed attempts, as a share of all of them
}

var laneCases = []laneCase{
	{"it answers 503", 0.5, 2 * time.Second, 4, 0, false, time.Hour, 40 * time.Minute, 0.05, 0.15},
	{"it hangs", 0.5, 2 * time.Second, 4, 0, true, time.Hour, 40 * time.Minute, 0.05, 0.15},
	// With the fewest failures, 0.15 is 3.5 standard deviations and 0.25 is 6.
	{"many slots", 2, 500 * time.Millisecond, 64, 0, false, 20 * time.Minute, 20 * time.Minute, 0.05, 0.25},
	{"a rate", 0.5, 200 * time.Millisecond, 16, 1, false, 30 * time.Minute, 40 * time.Minute, 0.05, 0.25},
	{"little to do", 0.01, 200 * time.Millisecond, 16, 0, false, time.Hour, 20 * time.Minute, 0.4, 0.15},
	{"longer than the window", 0.1, time.Second, 4, 0, false, 5 * time.Hour, time.Hour, 0.1, 0.1},
}

// compare gives the same arrivals to a lane of the model and to a webhook.Forwarder in virtual
// time. It compares them minute by minute, during an outage and after it. Only their jitter
// differs, which moves probes and retries by up to half a minute.
func (tt laneCase) compare(t *testing.T, seed uint64) {
	const before = 2 * time.Minute
	length := before + tt.outage + tt.after
	random := rand.New(rand.NewPCG(seed, 2))
	var arrivals []time.Duration
	for at := random.ExpFloat64() / tt.rate; at < length.Seconds(); at += random.ExpFloat64() / tt.rate {
		arrivals = append(arrivals, time.Duration(at*float64(time.Second)))
	}
	r := receiver{latency: latency{median: tt.latency}, from: before, to: before + tt.outage, hangs: tt.hangs}

	var real []sample
	d := webhook.Destination{ID: "crm", MaxConcurrent: tt.limit, MaxRate: tt.maxRate}
	forward(t, []webhook.Destination{d}, []receiver{r}, func(f *forwarding) {
		i := 0
		for now := time.Minute; now <= length; now += time.Minute {
			for ; i < len(arrivals) && arrivals[i] <= now; i++ {
				f.until(arrivals[i])
				f.event("crm")
			}
			f.until(now)
			synctest.Wait()
			real = append(real, f.sample())
		}
	})

	l := newLane(tt.limit, r, random)
	if tt.maxRate > 0 {
		l.interval, l.burst = time.Duration(float64(time.Second)/tt.maxRate), 1
	}
	var model []sample
	i := 0
	for now := time.Minute; now <= length; now += time.Minute {
		for ; i < len(arrivals) && arrivals[i] <= now; i++ {
			l.arrive(arrivals[i], arrivals[i], 1)
		}
		l.advance(now, math.MaxInt)
		model = append(model, sample{l.backlog() + len(l.active), l.done, l.failures})
	}

	most := 0
	for _, s := range real {
		most = max(most, s.waiting)
	}
	end := real[len(real)-1]
	// The model may reach a state up to a minute before or after the forwarder.
	differ := func(name string, minute int, of func(s sample) int, tolerance float64, whole int) {
		d := math.MaxInt
		for _, m := range model[max(0, minute-1):min(len(model), minute+2)] {
			d = min(d, max(of(m)-of(real[minute]), of(real[minute])-of(m)))
		}
		if d > 6 && float64(d) > tolerance*float64(whole) {
			t.Errorf("minute %d: %s: the lane has %+v, want about the forwarder's %+v", minute+1, name, model[minute], real[minute])
		}
	}
	for i := range real {
		differ("waiting", i, func(s sample) int { return s.waiting }, tt.waiting, most)
		differ("done", i, func(s sample) int { return s.done }, tt.waiting, most)
		differ("failed", i, func(s sample) int { return s.failed }, tt.failed, end.failed)
	}
	t.Logf("at most %d waited; at the end: the lane %+v, the forwarder %+v", most, model[len(model)-1], end)
}
