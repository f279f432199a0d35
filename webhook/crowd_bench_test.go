package webhook_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/memqueue"
)

var (
	crowdDestinations = flag.Int("crowd.destinations", 1000, "destinations of BenchmarkCrowd besides the healthy one; 100000 for figures")
	crowdTime         = flag.Duration("crowd.time", 100*time.Millisecond, "how long BenchmarkCrowd measures; 10s for figures")
)

// A crowd is the network of BenchmarkCrowd. Its receivers answer in no time and use no sockets.
type crowd struct {
	answer string // of the crowd; "" if it hangs

	mu       sync.Mutex
	ages     []time.Duration // of the events that have arrived at the healthy destination
	requests atomic.Int64    // to others
}

func (c *crowd) dial(_ context.Context, _, addr string) (net.Conn, error) {
	return &crowdConn{crowd: c, healthy: strings.HasPrefix(addr, "healthy."), answers: make(chan string, 1), closed: make(chan struct{})}, nil
}

// arrived records the age of the event in a request, which timedEvent has made.
func (c *crowd) arrived(request []byte) {
	_, made, _ := bytes.Cut(request, []byte(`{"made":"`))
	digits, _, _ := bytes.Cut(made, []byte(`"`))
	if at, err := strconv.ParseInt(string(digits), 10, 64); err == nil {
		c.mu.Lock()
		c.ages = append(c.ages, time.Duration(time.Now().UnixNano()-at))
		c.mu.Unlock()
	}
}

// A crowdConn is a connection to a receiver. The forwarder writes a short request at once.
type crowdConn struct {
	net.Conn // nil: only the methods below are called
	crowd    *crowd
	healthy  bool
	answers  chan string
	close    sync.Once
	closed   chan struct{}
}

func (c *crowdConn) Write(request []byte) (int, error) {
	switch {
	case c.healthy:
		c.crowd.arrived(request)
		c.answers <- "200 OK"
	default:
		c.crowd.requests.Add(1)
		if c.crowd.answer != "" {
			c.answers <- c.crowd.answer
		}
	}
	return len(request), nil
}

func (c *crowdConn) Read(b []byte) (int, error) {
	select {
	case answer := <-c.answers:
		return copy(b, "HTTP/1.1 "+answer+"\r\nContent-Length: 0\r\n\r\n"), nil
	case <-c.closed:
		return 0, io.EOF
	}
}

func (c *crowdConn) Close() error {
	c.close.Do(func() { close(c.closed) })
	return nil
}

func (c *crowdConn) SetDeadline(time.Time) error      { return errors.ErrUnsupported }
func (c *crowdConn) SetReadDeadline(time.Time) error  { return errors.ErrUnsupported }
func (c *crowdConn) SetWriteDeadline(time.Time) error { return errors.ErrUnsupported }

// BenchmarkCrowd measures a healthy destination beside a crowd of others. These fail with a 503,
// hang, or are healthy, but new. Each has a host of its own and gets one delivery, and another one
// when all have got one. Every 2 ms the healthy one gets an event. Reported are the percentiles of:
//   - forward, the time that ForwardEvents takes for such an event
//   - arrival, the time from the call of ForwardEvents until the receiver has the request
//
// and how many puts and requests a second there are for the crowd. The store and the network are in
// memory.
func BenchmarkCrowd(b *testing.B) {
	for _, tt := range []struct {
		name, answer string
		destinations int
	}{
		{"none", "", 0},
		{"failing", "503 Service Unavailable", *crowdDestinations},
		{"hanging", "", *crowdDestinations},
		{"new", "200 OK", *crowdDestinations},
	} {
		b.Run("crowd="+tt.name, func(b *testing.B) {
			for b.Loop() {
				measureCrowd(b, &crowd{answer: tt.answer}, tt.destinations)
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

func measureCrowd(b *testing.B, crowd *crowd, n int) {
	c := webhook.Config{Store: testkit.Must(memqueue.Open(memqueue.Config{MaxBytes: webhook.Unlimited})), DialContext: crowd.dial}
	destination := func(id string) string {
		c.Destinations = append(c.Destinations, webhook.Destination{ID: id, Endpoints: []webhook.Endpoint{{URL: "http://" + id + ".example/"}}})
		return id
	}
	healthy := destination("healthy")
	ids := make([]string, n)
	for i := range ids {
		ids[i] = destination(fmt.Sprint("crowd", i))
	}
	f, err := webhook.New(c)
	must(b, err)
	run := make(chan error, 1)
	go func() { run <- f.Run(context.Background()) }() // ended below
	forward := func(to string, at int64) {
		must(b, f.ForwardEvents(context.Background(), []string{to}, timedEvent(at)))
	}
	forward(healthy, 0)
	var took []time.Duration
	var puts time.Duration
	var measuring sync.WaitGroup
	begin := time.Now()
	measuring.Go(func() {
		for _, id := range ids {
			forward(id, 0)
		}
		puts = time.Since(begin)
	})
	measuring.Go(func() {
		for time.Since(begin) < *crowdTime {
			at := time.Now()
			forward(healthy, at.UnixNano())
			took = append(took, time.Since(at))
			time.Sleep(2 * time.Millisecond) // the events come at a rate
		}
	})
	measuring.Wait()
	total := time.Since(begin)
	requests := crowd.requests.Load()
	crowd.mu.Lock()
	ages := crowd.ages
	crowd.mu.Unlock()
	for name, at := range map[string]float64{"p50": 0.5, "p99": 0.99} {
		b.ReportMetric(percentile(took, at), "forward-"+name+"-ms")
		b.ReportMetric(percentile(ages, at), "arrival-"+name+"-ms")
	}
	if n > 0 {
		b.ReportMetric(float64(n)/puts.Seconds(), "puts/s")
		b.ReportMetric(float64(requests)/total.Seconds(), "requests/s")
	}
	b.ReportMetric(float64(len(ages))/float64(len(took)), "arrived")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	f.Shutdown(ctx) // cuts off attempts that hang
	must(b, <-run)
	must(b, c.Store.Close())
}
