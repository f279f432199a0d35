package webhook_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/filequeue"
	"github.com/hookferry/analytics/webhook/internal/bench"
	"github.com/hookferry/analytics/webhook/memqueue"
)

var (
	isolationDestinations = flag.Int("isolation.destinations", 100, "destinations of BenchmarkIsolation/trouble=dead, one in a hundred of them dead")
	isolationBacklog      = flag.Int("isolation.backlog", 20_000, "waiting deliveries in BenchmarkIsolation")
	isolationTurns        = flag.Int("isolation.turns", 1, "how often BenchmarkIsolation measures each side, each time for -isolation.turn")
	isolationTurn         = flag.Duration("isolation.turn", 100*time.Millisecond, "how long BenchmarkIsolation measures one side before it switches to the next")
	isolationRate         = flag.Int("isolation.rate", 1000, "events a second for the healthy destinations of BenchmarkIsolation")
	idleDestinations      = flag.Int("idle.destinations", 1000, "destinations of BenchmarkIdleDestination")
)

// An isolation is a forwarder with healthy and troubled destinations, on a file store that syncs
// each commit. The receivers run in two other processes, one for the healthy destinations and one
// for the troubled.
type isolation struct {
	*webhook.Forwarder
	b                 *testing.B
	queue             *filequeue.Store
	watch             *bench.Process // the receiver of the healthy destinations
	neighbour         string         // URL of the receiver of the troubled destinations
	healthy, troubled []string
	end               func()

	mu   sync.Mutex
	took []time.Duration // by requests to healthy destinations
}

// newIsolation starts a forwarder with paused troubled destinations. With hang, their receiver
// hangs. Otherwise it answers at once.
func newIsolation(b *testing.B, healthy, troubled int, hang bool) *isolation {
	b.Helper()
	s := &isolation{b: b}
	var addr string
	s.watch, addr = startProcess(b, "stopwatch")
	_, other := startProcess(b, "stopwatch")
	path := "/hook"
	if hang {
		path = "/hang"
	}
	s.neighbour = "http://" + other + path
	var err error
	if s.queue, err = filequeue.Open(b.TempDir(), filequeue.Config{}); err != nil {
		b.Fatal(err)
	}
	c := webhook.Config{Store: s.queue, Observers: []webhook.Observer{s}}
	add := func(ids *[]string, name, rawURL string, n int) {
		for i := range n {
			id := fmt.Sprint(name, i)
			*ids = append(*ids, id)
			c.Destinations = append(c.Destinations, webhook.Destination{ID: id, Secret: "shh", Endpoints: []webhook.Endpoint{{URL: rawURL + "?" + id}}})
		}
	}
	add(&s.healthy, "fine", "http://"+addr+"/hook", healthy)
	add(&s.troubled, "other", s.neighbour, troubled)
	if s.Forwarder, err = webhook.New(c); err != nil {
		b.Fatal(err)
	}
	s.pause()
	run := make(chan error, 1)
	go func() { run <- s.Run(context.Background()) }() // ended by end
	s.end = func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		s.Shutdown(ctx) // cuts off attempts that hang
		if err := <-run; err != nil {
			b.Error(err)
		}
		if err := s.queue.Close(); err != nil {
			b.Error(err)
		}
	}
	return s
}

func (s *isolation) Accepted(webhook.Accepted) {}

func (s *isolation) Attempted(a webhook.Attempted) {
	if strings.HasPrefix(a.Destination, "fine") {
		s.mu.Lock()
		s.took = append(s.took, time.Duration(a.Took))
		s.mu.Unlock()
	}
}

func (s *isolation) Ended(webhook.Record) {}

func (s *isolation) pause() {
	for _, id := range s.troubled {
		if err := s.Pause(context.Background(), id); err != nil {
			s.b.Fatal(err)
		}
	}
}

func (s *isolation) resume() {
	for _, id := range s.troubled {
		if err := s.Resume(context.Background(), id); err != nil {
			s.b.Fatal(err)
		}
	}
}

func (s *isolation) waiting() int {
	c, err := s.queue.Count(context.Background())
	if err != nil {
		s.b.Fatal(err)
	}
	return c.Waiting
}

// fill stores about n waiting deliveries for the troubled destinations.
func (s *isolation) fill(n int) {
	events := make([]event.Event, 500)
	for i := 0; i*len(events) < n; i++ {
		for j := range events {
			events[j] = timedEvent(0)
		}
		if err := s.ForwardEvents(context.Background(), s.troubled[i%len(s.troubled):][:1], events...); err != nil {
			s.b.Fatal(err)
		}
	}
}

var isolationIDs atomic.Int64

// timedEvent returns an event with a new id. Unless at is 0, its body has the time at which it was
// made, in nanoseconds.
func timedEvent(at int64) event.Event {
	id := strconv.FormatInt(isolationIDs.Add(1), 10)
	body := fmt.Appendf(nil, `{"x":"%s"}`, strings.Repeat("x", 420))
	if at != 0 {
		body = fmt.Appendf(nil, `{"made":"%d","x":"%s"}`, at, strings.Repeat("x", 400))
	}
	return event.Event{ID: id, Type: "track", Body: body, Received: time.Now()}
}

// offer forwards single events to the healthy destinations, one destination after another, for
// -isolation.turn and at -isolation.rate. It adds the measured times to a.
func (s *isolation) offer(a *arrivals) {
	const callers = 32
	s.take()
	begin := time.Now()
	every := time.Second * callers / time.Duration(*isolationRate)
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			to := i
			for at := begin.Add(every * time.Duration(i) / callers); at.Sub(begin) < *isolationTurn; at = at.Add(every) {
				time.Sleep(time.Until(at)) // keeps the rate
				e := timedEvent(time.Now().UnixNano())
				if err := s.ForwardEvents(context.Background(), s.healthy[to%len(s.healthy):][:1], e); err != nil {
					s.b.Error(err)
					return
				}
				to += callers
			}
		})
	}
	wg.Wait()
	took := time.Since(begin)
	ages, requests := s.take()
	a.ages = append(a.ages, ages...)
	a.requests = append(a.requests, requests...)
	a.time += took
}

// take returns the ages of events at their arrival and the durations of requests, both since the
// last take.
func (s *isolation) take() (ages, requests []time.Duration) {
	s.watch.Say("take")
	for f := range strings.FieldsSeq(s.watch.Line()) {
		age, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			s.b.Fatal(err)
		}
		ages = append(ages, time.Duration(age))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	requests, s.took = s.took, nil
	return ages, requests
}

// arrivals are the measurements of one side of a comparison.
type arrivals struct {
	ages, requests []time.Duration
	time           time.Duration
}

func (a *arrivals) rate() float64 { return float64(len(a.ages)) / a.time.Seconds() }

// percentile sorts ds and returns its percentile p, which is from 0 to 1, in milliseconds.
func percentile(ds []time.Duration, p float64) float64 {
	if len(ds) == 0 {
		return 0
	}
	slices.Sort(ds)
	return ds[int(float64(len(ds)-1)*p)].Seconds() * 1e3
}

// BenchmarkIsolation measures how much troubled destinations slow the healthy ones. It alternates
// between two sides: the troubled destinations are paused, or they are not. It reports ratios below
// 1 if the healthy destinations are worse off beside trouble:
//   - x_rate, of their throughput at a given rate of events
//   - x_p50 and x_p99, of the time from Forward to arrival
//   - x_req99, of the time of the requests alone
//
// A backlog that drains also takes processor time from all processes, receivers included. A third
// side measures this effect alone. While the troubled destinations are paused, another process
// posts to their receiver through a bare http.Transport, at the rate of the drain (ctl_p50,
// ctl_p99).
func BenchmarkIsolation(b *testing.B) {
	for _, tt := range []struct {
		name              string
		healthy, troubled func() int
		hang              bool
		waiting           func() int
	}{
		{"hang", func() int { return 9 }, func() int { return 1 }, true, func() int { return 1000 }},
		{"dead", func() int { return *isolationDestinations * 99 / 100 }, func() int { return max(*isolationDestinations/100, 1) }, true, func() int { return *isolationBacklog }},
		{"backlog", func() int { return 9 }, func() int { return 1 }, false, func() int { return *isolationBacklog }},
	} {
		b.Run("trouble="+tt.name, func(b *testing.B) {
			var before, during, control, unused arrivals
			drained := 0
			for b.Loop() {
				s := newIsolation(b, tt.healthy(), tt.troubled(), tt.hang)
				s.fill(tt.waiting())
				s.offer(&unused) // makes the connections and grows the file
				for range *isolationTurns {
					s.offer(&before)
					had := s.waiting()
					s.resume()
					s.offer(&during)
					s.pause()
					if tt.hang {
						continue
					}
					n := had - s.waiting()
					if n == had {
						b.Fatalf("none of %d waiting deliveries was drained, want some", had)
					}
					drained += n
					load, _ := startProcess(b, "load", s.neighbour, max(int(float64(n)/(*isolationTurn).Seconds()), 1))
					s.offer(&control)
					load.End()
				}
				s.end()
			}
			ratio := func(name string, of, to float64) { b.ReportMetric(of/to, name) }
			b.ReportMetric(before.rate(), "before/s")
			ratio("x_rate", during.rate(), before.rate())
			for _, p := range []struct {
				name string
				at   float64
			}{{"p50", 0.5}, {"p99", 0.99}} {
				was := percentile(before.ages, p.at)
				b.ReportMetric(was, p.name+"-ms")
				ratio("x_"+p.name, was, percentile(during.ages, p.at))
				if !tt.hang {
					ratio("ctl_"+p.name, was, percentile(control.ages, p.at))
				}
			}
			ratio("x_req99", percentile(before.requests, 0.99), percentile(during.requests, 0.99))
			if !tt.hang {
				b.ReportMetric(float64(drained)/during.time.Seconds(), "drained/s")
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkIdleDestination reports the heap that each destination takes after one delivery to it,
// in addition to its settings.
func BenchmarkIdleDestination(b *testing.B) {
	n := *idleDestinations
	heap := func() float64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc)
	}
	for b.Loop() {
		rawURL := bench.Receiver(b)
		c := webhook.Config{Store: testkit.Must(memqueue.Open(memqueue.Config{}))}
		for i := range n {
			id := fmt.Sprint("d", i)
			c.Destinations = append(c.Destinations, webhook.Destination{ID: id, Endpoints: []webhook.Endpoint{{URL: rawURL + id}}})
		}
		f, err := webhook.New(c)
		must(b, err)
		before := heap()
		run := make(chan error, 1)
		go func() { run <- f.Run(context.Background()) }() // ended below
		for _, i := range rand.New(rand.NewPCG(1, 0)).Perm(n) {
			must(b, f.ForwardEvents(context.Background(), []string{fmt.Sprint("d", i)}, timedEvent(0)))
		}
		for f.Stats().Delivered < int64(n) {
			time.Sleep(time.Millisecond) // polls until all are delivered
		}
		b.ReportMetric((heap()-before)/float64(n), "B/destination")
		f.Shutdown(context.Background())
		if err := <-run; err != nil {
			b.Error(err)
		}
		if err := c.Store.Close(); err != nil {
			b.Error(err)
		}
	}
	b.ReportMetric(0, "ns/op")
}
