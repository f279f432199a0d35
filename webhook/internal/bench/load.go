package bench

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/webhook"
)

// Endings counts deliveries that have ended. It is a webhook.Observer. If a benchmark
// has an observer of its own, that observer must call the methods of Endings.
type Endings struct {
	n, target atomic.Int64
	reached   chan struct{} // capacity 1
}

// NewEndings returns Endings that have counted nothing.
func NewEndings() *Endings { return &Endings{reached: make(chan struct{}, 1)} }

func (e *Endings) Accepted(webhook.Accepted)   {}
func (e *Endings) Attempted(webhook.Attempted) {}

func (e *Endings) Ended(webhook.Record) {
	if e.n.Add(1) == e.target.Load() {
		e.reached <- struct{}{}
	}
}

// Batch is the number of events in one call of ForwardEvents.
const Batch = 100

// Round is how many deliveries the forwarder makes in a row, and how many requests the bare
// http.Transport makes. A benchmark alternates between the two. Round is a multiple of Batch.
var Round = flag.Int("bench.round", 1000, "how many deliveries, and then bare requests, a benchmark makes in turn, a multiple of 100; 10000 for figures")

// A Load is a forwarder that delivers to a receiver. To compare, it can post the same
// bytes to the same receiver with a bare http.Transport, with the same concurrency.
type Load struct {
	*webhook.Forwarder
	// Destinations lists the ids of the forwarder's destinations.
	Destinations []string
	// Bodies are the bodies of the events, in turn. Nil stands for Body alone.
	Bodies [][]byte
	// Keys is how many Keys the events have, in turn. If it is 0, they have none.
	Keys int

	b           *testing.B
	url         string
	concurrency int
	ended       *Endings
	id          atomic.Int64
}

// NewLoad starts a Receiver, and a forwarder on q that delivers to it. The end of the
// benchmark closes both.
func NewLoad(b *testing.B, q webhook.Store, destinations, concurrency int) *Load {
	b.Helper()
	ended := NewEndings()
	return StartLoad(b, webhook.Config{Store: q, Observers: []webhook.Observer{ended}}, ended, Receiver(b), destinations, concurrency)
}

// StartLoad starts a forwarder with c that delivers to rawURL. The Observer of c must
// be the argument ended, or call the methods of ended. The end of the benchmark closes
// the forwarder and its store.
func StartLoad(b *testing.B, c webhook.Config, ended *Endings, rawURL string, destinations, concurrency int) *Load {
	b.Helper()
	return StartLoadTo(b, c, ended, rawURL, destinations, concurrency, webhook.Destination{})
}

// StartLoadTo is StartLoad for destinations with more settings, such as a Batch.
func StartLoadTo(b *testing.B, c webhook.Config, ended *Endings, rawURL string, destinations, concurrency int, settings webhook.Destination) *Load {
	b.Helper()
	l := &Load{b: b, url: rawURL, concurrency: concurrency, ended: ended}
	c.MaxInFlight, c.MaxConcurrent = concurrency, concurrency
	for i := range destinations {
		d := settings
		d.ID, d.Secret, d.Endpoints = fmt.Sprint("d", i), "shh", []webhook.Endpoint{{URL: rawURL}}
		l.Destinations = append(l.Destinations, d.ID)
		c.Destinations = append(c.Destinations, d)
	}
	f, err := webhook.New(c)
	if err != nil {
		b.Fatal(err)
	}
	l.Forwarder = f
	run := make(chan error, 1)
	go func() { run <- f.Run(context.Background()) }() // ended below
	b.Cleanup(func() {
		if err := f.Shutdown(context.Background()); err != nil {
			b.Error(err)
		}
		if err := <-run; err != nil {
			b.Error(err)
		}
		if err := c.Store.Close(); err != nil {
			b.Error(err)
		}
	})
	return l
}

// made is an event of package event, so that a forwarder need not check it.
var made = testkit.Must(new(event.Encoder).Encode(event.JSON(`{"type":"track","event":"e","userId":"u"}`)))

// Next fills events with new events. Their ids differ from those of all earlier events.
func (l *Load) Next(events []event.Event) {
	now := time.Now()
	after := l.id.Add(int64(len(events)))
	for i := range events {
		events[i] = made
		events[i].ID, events[i].Body, events[i].Received = fmt.Sprint("message-", after-int64(i)), Body, now
		if l.Keys > 0 {
			events[i].Key = fmt.Sprint("key-", int(after-int64(i))%l.Keys)
		}
		if l.Bodies != nil {
			events[i].Body = l.Bodies[int(after-int64(i))%len(l.Bodies)]
		}
	}
}

// Forward forwards n events, a multiple of Batch, and returns the time until all are
// delivered. While the store is full it retries, as a client of the collector does.
func (l *Load) Forward(n int) time.Duration {
	begin := time.Now()
	l.ended.target.Store(l.ended.n.Load() + int64(n))
	var left atomic.Int64
	left.Store(int64(n / Batch))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			events := make([]event.Event, Batch)
			for {
				turn := left.Add(-1)
				if turn < 0 {
					return
				}
				l.Next(events)
				to := l.Destinations[int(turn)%len(l.Destinations)]
				for {
					err := l.ForwardEvents(context.Background(), []string{to}, events...)
					if err == nil {
						break
					}
					if !errors.Is(err, webhook.ErrQueueFull) {
						l.b.Error(err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	<-l.ended.reached
	return time.Since(begin)
}

// Pace forwards n single events, one in each interval, and returns when all are delivered.
func (l *Load) Pace(n int, interval time.Duration) {
	begin := time.Now()
	l.ended.target.Store(l.ended.n.Load() + int64(n))
	var next atomic.Int64
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			e := make([]event.Event, 1)
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				time.Sleep(time.Until(begin.Add(time.Duration(i) * interval))) // keeps the rate
				l.Next(e)
				if err := l.ForwardEvents(context.Background(), l.Destinations[:1], e...); err != nil {
					l.b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	<-l.ended.reached
}

// Bare posts n bodies without the forwarder, and returns how long that took.
func (l *Load) Bare(n int) time.Duration { return Bare(l.b, l.url, n, l.concurrency) }

// Compare runs the benchmark of l: deliveries, in turn with bare requests. It reports
// deliveries a second, and their ratio to bare requests a second as x_bare.
//
// cpu may be nil. Otherwise it returns the processor time of this process, and Compare also reports
// bare_us, the processor time of a bare request, and us_more, by how much the processor time of a
// delivery exceeds bare_us. A delivery is measured from the call of ForwardEvents to the outcome in
// the store. us_more may be negative.
func (l *Load) Compare(cpu func() time.Duration) {
	round := *Round
	used := cpu
	if cpu == nil {
		used = func() time.Duration { return 0 }
	}
	l.Bare(Batch)
	l.Forward(Batch)
	var bareTime, ourTime, bareCPU, ourCPU time.Duration
	n := 0
	for l.b.Loop() {
		c0 := used()
		bareTime += l.Bare(round)
		c1 := used()
		ourTime += l.Forward(round)
		bareCPU += c1 - c0
		ourCPU += used() - c1
		n += round
	}
	l.b.ReportMetric(float64(n)/bareTime.Seconds(), "bare/s")
	l.b.ReportMetric(float64(n)/ourTime.Seconds(), "deliveries/s")
	l.b.ReportMetric(bareTime.Seconds()/ourTime.Seconds(), "x_bare")
	if cpu != nil {
		l.b.ReportMetric(float64(bareCPU.Microseconds())/float64(n), "bare_us")
		l.b.ReportMetric(float64((ourCPU-bareCPU).Microseconds())/float64(n), "us_more")
	}
	l.b.ReportMetric(0, "ns/op")
}

// Deliveries runs Compare with 1 and with 10 destinations, on stores that open returns.
// The receiver is a separate process.
func Deliveries(b *testing.B, open func(b *testing.B) webhook.Store) {
	for _, destinations := range []int{1, 10} {
		b.Run(fmt.Sprintf("destinations=%d/concurrency=64", destinations), func(b *testing.B) {
			NewLoad(b, open(b), destinations, 64).Compare(nil)
		})
	}
}
