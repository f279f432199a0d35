package webhook_test

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/boltqueue"
	"github.com/hookferry/analytics/webhook/memqueue"
)

var (
	isolationDestinations = flag.Int("isolation.destinations", 500, "destinations of BenchmarkIsolation/trouble=dead, one in a hundred of them dead")
	isolationBacklog      = flag.Int("isolation.backlog", 50_000, "deliveries that wait in BenchmarkIsolation")
	isolationTime         = flag.Duration("isolation.time", 2*time.Second, "how long BenchmarkIsolation measures, before the trouble and during it")
	isolationRate         = flag.Int("isolation.rate", 1000, "events a second for the healthy destinations of BenchmarkIsolation")
)

// A stopwatch is a receiver in this process. It answers requests at once, and
// notes how old their events are, which say in their bodies when they were made;
// or it never answers.
type stopwatch struct {
	url  string
	hang bool

	mu   sync.Mutex
	ages []time.Duration
}

func newStopwatch(b *testing.B, hang bool) *stopwatch {
	b.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	w := &stopwatch{url: "http://" + ln.Addr().String() + "/", hang: hang}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { w.serve(c) })
		}
	})
	b.Cleanup(func() {
		ln.Close()
		wg.Wait() // the forwarder has closed its connections before
	})
	return w
}

func (w *stopwatch) serve(c net.Conn) {
	defer c.Close()
	r := bufio.NewReaderSize(c, 8<<10)
	length := 0
	body := make([]byte, 4<<10)
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return
		}
		line = bytes.TrimRight(line, "\r\n")
		if v, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
			length, _ = strconv.Atoi(string(v))
		}
		if len(line) > 0 {
			continue
		}
		for n := 0; n < length; {
			m, err := r.Read(body[n:length])
			if err != nil {
				return
			}
			n += m
		}
		if w.hang {
			continue
		}
		if made, _, ok := bytes.Cut(body[len(`{"made":`):length], []byte(",")); ok {
			if at, err := strconv.ParseInt(string(made), 10, 64); err == nil && at > 0 {
				w.mu.Lock()
				w.ages = append(w.ages, time.Since(time.Unix(0, at)))
				w.mu.Unlock()
			}
		}
		if _, err := c.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")); err != nil {
			return
		}
	}
}

// take returns the ages noted since the last take, in order.
func (w *stopwatch) take() []time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	ages := w.ages
	w.ages = nil
	slices.Sort(ages)
	return ages
}

var isolationIDs int

// timed is an event that says when it was made; at 0 it takes no part.
func timed(at int64) webhook.Event {
	isolationIDs++
	body := fmt.Appendf(nil, `{"made":%d,"x":"%s"}`, at, benchBody[:400])
	return webhook.Event{ID: strconv.Itoa(isolationIDs), Type: "track", Body: body, Received: time.Now()}
}

// offer forwards events to destinations in turn, at a rate, each in a call of
// its own.
func offer(b *testing.B, f *webhook.Forwarder, w *stopwatch, destinations []string) arrivals {
	const callers = 32
	var mu sync.Mutex
	var wg sync.WaitGroup
	next := 0
	w.take()
	begin := time.Now()
	every := time.Second * callers / time.Duration(*isolationRate)
	for i := range callers {
		wg.Go(func() {
			for at := begin.Add(every * time.Duration(i) / callers); at.Sub(begin) < *isolationTime; at = at.Add(every) {
				time.Sleep(time.Until(at)) // the rate is what is measured at
				mu.Lock()
				e := timed(time.Now().UnixNano())
				to := destinations[next%len(destinations)]
				next++
				mu.Unlock()
				if err := f.ForwardEvents(context.Background(), []string{to}, e); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	took := time.Since(begin)
	ages := w.take()
	if len(ages) == 0 {
		b.Fatal("nothing arrived")
	}
	return arrivals{
		rate: float64(len(ages)) / took.Seconds(),
		p50:  ages[len(ages)/2].Seconds() * 1e3,
		p99:  ages[len(ages)*99/100].Seconds() * 1e3,
	}
}

// arrivals say how many events arrived a second, and how old they were, in
// milliseconds.
type arrivals struct {
	rate, p50, p99 float64
}

func (a *arrivals) add(other arrivals) {
	a.rate += other.rate
	a.p50 += other.p50
	a.p99 += other.p99
}

// BenchmarkIsolation prints what healthy destinations keep, as a ratio to what
// they had just before on the same forwarder, while others are in trouble: of
// their throughput at a given rate, and of the median and the 99th percentile of
// the time from Forward to arrival (before/during: below 1 is slower during). Store in a file,
// each commit synced.
func BenchmarkIsolation(b *testing.B) {
	for _, tt := range []struct {
		name     string
		healthy  func() int
		troubled func() int
		hang     bool
		waiting  func() int
	}{
		{"hang", func() int { return 9 }, func() int { return 1 }, true, func() int { return 1000 }},
		{"dead", func() int { return *isolationDestinations * 99 / 100 }, func() int { return max(*isolationDestinations/100, 1) }, true, func() int { return *isolationBacklog }},
		{"backlog", func() int { return 9 }, func() int { return 1 }, false, func() int { return *isolationBacklog }},
	} {
		b.Run("trouble="+tt.name, func(b *testing.B) {
			var before, during arrivals
			for b.Loop() {
				fine, other := newStopwatch(b, false), newStopwatch(b, tt.hang)
				q, err := boltqueue.Open(filepath.Join(b.TempDir(), "bench.db"), nil)
				if err != nil {
					b.Fatal(err)
				}
				c := webhook.Config{Queue: q}
				var healthy, troubled []string
				add := func(ids *[]string, name, u string, n int) {
					for i := range n {
						id := fmt.Sprint(name, i)
						*ids = append(*ids, id)
						c.Destinations = append(c.Destinations, webhook.Destination{ID: id, Secret: "shh", Endpoints: []webhook.Endpoint{{URL: u + id}}})
					}
				}
				add(&healthy, "fine", fine.url, tt.healthy())
				add(&troubled, "other", other.url, tt.troubled())
				f, err := webhook.New(c)
				if err != nil {
					b.Fatal(err)
				}
				run := make(chan error, 1)
				go func() { run <- f.Run(context.Background()) }() // ended below
				for _, id := range troubled {
					if err := f.Pause(id); err != nil {
						b.Fatal(err)
					}
				}
				const batch = 500
				events := make([]webhook.Event, batch)
				for n := 0; n < tt.waiting(); n += batch {
					for i := range events {
						events[i] = timed(0)
					}
					if err := f.ForwardEvents(context.Background(), []string{troubled[n/batch%len(troubled)]}, events...); err != nil {
						b.Fatal(err)
					}
				}
				offer(b, f, fine, healthy) // connections, the file's growth
				before.add(offer(b, f, fine, healthy))
				for _, id := range troubled {
					if err := f.Resume(id); err != nil {
						b.Fatal(err)
					}
				}
				during.add(offer(b, f, fine, healthy))
				if tt.name == "backlog" {
					left, err := q.Count(context.Background())
					if err != nil {
						b.Fatal(err)
					}
					b.ReportMetric(float64(left.Waiting), "left")
				}
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				f.Shutdown(ctx) // what hangs is cut off
				cancel()
				if err := <-run; err != nil {
					b.Error(err)
				}
				if err := q.Close(); err != nil {
					b.Error(err)
				}
			}
			n := float64(b.N)
			b.ReportMetric(before.rate/n, "before/s")
			b.ReportMetric(during.rate/before.rate, "x_rate")
			b.ReportMetric(before.p50/n, "p50-ms-before")
			b.ReportMetric(before.p50/during.p50, "x_p50")
			b.ReportMetric(before.p99/n, "p99-ms-before")
			b.ReportMetric(before.p99/during.p99, "x_p99")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkIdleDestination prints the heap that a destination costs after a
// delivery to it, and after a minute without one, beside its settings.
func BenchmarkIdleDestination(b *testing.B) {
	const n = 10_000
	heap := func() float64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc)
	}
	for b.Loop() {
		w := newStopwatch(b, false)
		c := webhook.Config{Queue: memqueue.New(memqueue.Config{})}
		for i := range n {
			id := fmt.Sprint("d", i)
			c.Destinations = append(c.Destinations, webhook.Destination{ID: id, Endpoints: []webhook.Endpoint{{URL: w.url + id}}})
		}
		f, err := webhook.New(c)
		if err != nil {
			b.Fatal(err)
		}
		before := heap()
		run := make(chan error, 1)
		go func() { run <- f.Run(context.Background()) }() // ended below
		order := rand.Perm(n)
		for _, i := range order {
			if err := f.ForwardEvents(context.Background(), []string{fmt.Sprint("d", i)}, timed(0)); err != nil {
				b.Fatal(err)
			}
		}
		for f.Stats().Delivered < n {
			time.Sleep(time.Millisecond) // for what is measured next
		}
		b.ReportMetric((heap()-before)/n, "B/destination")
		f.Shutdown(context.Background())
		if err := <-run; err != nil {
			b.Error(err)
		}
		if err := c.Queue.Close(); err != nil {
			b.Error(err)
		}
	}
	b.ReportMetric(0, "ns/op")
}
