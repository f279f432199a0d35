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

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/memqueue"
	"github.com/hookferry/analytics/webhook/webhooktest"
)

// A sample is what was seen at the end of a minute.
type sample struct {
	waiting      int // being attempted included
	done, failed int // attempts
}

// A forwarding is a webhook.Forwarder that runs in virtual time, on a store in
// memory and a network in memory.
type forwarding struct {
	*webhook.Forwarder
	t       *testing.T
	network *webhooktest.Network
	queue   webhook.Queue
	began   time.Time
	ids     int
	run     chan error
}

// forward starts one in a bubble, with destinations that r receives for, and
// has do use it.
func forward(t *testing.T, destinations []webhook.Destination, receivers []receiver, do func(f *forwarding)) {
	synctest.Test(t, func(t *testing.T) {
		f := &forwarding{t: t, network: webhooktest.NewNetwork(), queue: memqueue.New(memqueue.Config{}), began: time.Now(), run: make(chan error, 1)}
		defer f.network.Close()
		defer f.queue.Close()
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
		f.Forwarder, err = webhook.New(webhook.Config{Queue: f.queue, Destinations: destinations, DialContext: f.network.DialContext})
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

// TestBytesOfARequest holds head to what the forwarder sends beside a body.
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
			Queue:        queue,
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
		if err := f.ForwardEvents(t.Context(), []string{"crm"}, webhook.Event{ID: "m1", Type: "track", Body: body, Received: time.Now()}); err != nil {
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
			t.Errorf("a request has %d bytes beside its body, the plan is for %d", got, head)
		}
	})
}

// until has the time come, counted from the start.
func (f *forwarding) until(at time.Duration) { time.Sleep(time.Until(f.began.Add(at))) }

// event forwards an event.
func (f *forwarding) event(destination string) {
	f.ids++
	e := webhook.Event{ID: fmt.Sprint("m", f.ids), Type: "track", Body: []byte(`{}`), Received: time.Now()}
	if err := f.ForwardEvents(context.Background(), []string{destination}, e); err != nil {
		f.t.Fatal(err)
	}
}

func (f *forwarding) sample() sample {
	c, err := f.queue.(webhook.Counter).Count(context.Background())
	if err != nil {
		f.t.Fatal(err)
	}
	s := f.Stats()
	return sample{c.Waiting, int(s.Delivered), int(s.Retried)}
}

// TestLaneDoesWhatTheForwarderDoes gives the same arrivals to a lane and to a
// webhook.Forwarder in virtual time, and compares them minute by minute, in an
// outage and after it. Only their jitter differs: of the probes, so that one goes
// on up to half a minute before the other, and of what is tried again.
func TestLaneDoesWhatTheForwarderDoes(t *testing.T) {
	for _, tt := range []struct {
		name    string
		rate    float64 // arrivals a second
		latency time.Duration
		limit   int
		maxRate float64
		hangs   bool
		outage  time.Duration
		after   time.Duration
		waiting float64 // tolerance: of what waits and is done, to the most that waits
		failed  float64 // and of attempts that fail, to all of them
	}{
		{"it answers 503", 0.5, 2 * time.Second, 4, 0, false, time.Hour, 40 * time.Minute, 0.05, 0.15},
		{"it hangs", 0.5, 2 * time.Second, 4, 0, true, time.Hour, 40 * time.Minute, 0.05, 0.15},
		// Of the fewest failures, where 0.15 is 3.5 standard deviations, and 0.25 is 6.
		{"many slots", 2, 500 * time.Millisecond, 64, 0, false, 20 * time.Minute, 20 * time.Minute, 0.05, 0.25},
		{"a rate", 0.5, 200 * time.Millisecond, 16, 1, false, 30 * time.Minute, 40 * time.Minute, 0.05, 0.25},
		{"little to do", 0.01, 200 * time.Millisecond, 16, 0, false, time.Hour, 20 * time.Minute, 0.4, 0.15},
		{"longer than the window", 0.1, time.Second, 4, 0, false, 5 * time.Hour, time.Hour, 0.1, 0.1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			const before = 2 * time.Minute
			length := before + tt.outage + tt.after
			random := rand.New(rand.NewPCG(1, 2))
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
			differ := func(name string, minute, got, want int, tolerance float64, of int) {
				if d := math.Abs(float64(got - want)); d > tolerance*float64(of) && d > 6 {
					t.Errorf("minute %d: %s: the lane has %d, the forwarder %d", minute+1, name, got, want)
				}
			}
			for i := range real {
				differ("waiting", i, model[i].waiting, real[i].waiting, tt.waiting, most)
				differ("done", i, model[i].done, real[i].done, tt.waiting, most)
				differ("failed", i, model[i].failed, real[i].failed, tt.failed, end.failed)
			}
			t.Logf("at most %d waited; at the end: the lane %+v, the forwarder %+v", most, model[len(model)-1], end)
		})
	}
}
