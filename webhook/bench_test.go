package webhook_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/boltqueue"
	"github.com/hookferry/analytics/webhook/memqueue"
)

// nullReceiver starts a receiver in a process of its own and returns its URL.
func nullReceiver(b *testing.B) string {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "HOOKFERRY_NULL_RECEIVER=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		in.Close()
		cmd.Wait()
	})
	addr, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	return "http://" + strings.TrimSpace(addr) + "/hook"
}

// benchBody is a webhook body of 450 bytes.
var benchBody = func() []byte {
	const head, tail = `{"version":1,"type":"track","userId":"user-1","event":"Order Completed","properties":{"note":"`, `"},"timestamp":"2026-01-02T03:04:05.678Z"}`
	return []byte(head + strings.Repeat("x", 450-len(head)-len(tail)) + tail)
}()

// bare posts n bodies by a bare http.Transport, so many at once, and returns
// how long it took.
func bare(b *testing.B, rawURL string, n, concurrency int) time.Duration {
	u, err := url.Parse(rawURL)
	if err != nil {
		b.Fatal(err)
	}
	t := &http.Transport{MaxIdleConnsPerHost: concurrency, DisableCompression: true}
	defer t.CloseIdleConnections()
	sign, err := signature.Sign(benchBody, "shh")
	if err != nil {
		b.Fatal(err)
	}
	header := http.Header{"Content-Type": {"application/json"}, "User-Agent": {"Hookferry/1.0"}, signature.Header: {sign}}
	var left atomic.Int64
	left.Store(int64(n))
	begin := time.Now()
	var wg sync.WaitGroup
	for range concurrency {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				resp, err := t.RoundTrip(&http.Request{
					Method: "POST", URL: u, Host: u.Host, Header: header,
					Body: io.NopCloser(bytes.NewReader(benchBody)), ContentLength: int64(len(benchBody)),
				})
				if err != nil {
					b.Error(err)
					return
				}
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		})
	}
	wg.Wait()
	return time.Since(begin)
}

// A bench is a forwarder at work on a store.
type bench struct {
	*webhook.Forwarder
	destinations []string
	next         atomic.Int64
	ended        endings
}

// endings observes deliveries to their ends.
type endings struct {
	n, target atomic.Int64
	reached   chan struct{} // capacity 1
}

func (e *endings) Accepted(webhook.Accepted)   {}
func (e *endings) Attempted(webhook.Attempted) {}

func (e *endings) Ended(webhook.Ended) {
	if e.n.Add(1) == e.target.Load() {
		e.reached <- struct{}{}
	}
}

func newBench(b *testing.B, q webhook.Queue, rawURL string, destinations, concurrency int) *bench {
	b.Helper()
	h := &bench{ended: endings{reached: make(chan struct{}, 1)}}
	c := webhook.Config{Queue: q, Observer: &h.ended, MaxInFlight: concurrency, MaxConcurrent: concurrency}
	for i := range destinations {
		id := fmt.Sprint("d", i)
		h.destinations = append(h.destinations, id)
		c.Destinations = append(c.Destinations, webhook.Destination{ID: id, Secret: "shh", Endpoints: []webhook.Endpoint{{URL: rawURL}}})
	}
	f, err := webhook.New(c)
	if err != nil {
		b.Fatal(err)
	}
	h.Forwarder = f
	run := make(chan error, 1)
	go func() { run <- f.Run(context.Background()) }() // ended below
	b.Cleanup(func() {
		if err := f.Shutdown(context.Background()); err != nil {
			b.Error(err)
		}
		if err := <-run; err != nil {
			b.Error(err)
		}
		if err := q.Close(); err != nil {
			b.Error(err)
		}
	})
	return h
}

// forward stores n events in batches of 100, and returns how long it takes
// until all are delivered.
func (h *bench) forward(b *testing.B, n int) time.Duration {
	begin := time.Now()
	h.ended.target.Store(h.ended.n.Load() + int64(n))
	const batch = 100
	var left atomic.Int64
	left.Store(int64(n / batch))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			events := make([]webhook.Event, batch)
			for left.Add(-1) >= 0 {
				now := time.Now()
				at := h.next.Add(batch)
				for i := range events {
					events[i] = webhook.Event{ID: fmt.Sprint("message-", at+int64(i)), Type: "track", Body: benchBody, Received: now}
				}
				to := h.destinations[int(at/batch)%len(h.destinations)]
				for {
					// A full store is waited for, as a collector's client does.
					err := h.ForwardEvents(context.Background(), []string{to}, events...)
					if err == nil {
						break
					}
					if err != webhook.ErrQueueFull {
						b.Error(err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	select {
	case <-h.ended.reached:
	case <-time.After(2 * time.Minute):
		b.Fatalf("%+v after two minutes", h.Stats())
	}
	return time.Since(begin)
}

// BenchmarkDeliveries prints deliveries a second, and as x_bare their ratio to
// those of a bare http.Transport which posts the same bytes to the same
// receiver with the same concurrency, in turn with it. bare_us is the processor
// time of one of its requests, and us_more what a delivery takes beyond that,
// from the call of ForwardEvents to the outcome in the store; it may be less
// than nothing. The receiver is a process of its own.
func BenchmarkDeliveries(b *testing.B) {
	const round = 10_000
	for _, store := range []struct {
		name string
		open func(b *testing.B) webhook.Queue
	}{
		{"mem", func(*testing.B) webhook.Queue { return memqueue.New(memqueue.Config{}) }},
		{"bolt", func(b *testing.B) webhook.Queue {
			q, err := boltqueue.Open(filepath.Join(b.TempDir(), "bench.db"), nil)
			if err != nil {
				b.Fatal(err)
			}
			return q
		}},
	} {
		for _, destinations := range []int{1, 10} {
			for _, concurrency := range []int{16, 64, 128} {
				b.Run(fmt.Sprintf("store=%s/destinations=%d/concurrency=%d", store.name, destinations, concurrency), func(b *testing.B) {
					rawURL := nullReceiver(b)
					h := newBench(b, store.open(b), rawURL, destinations, concurrency)
					bare(b, rawURL, round/10, concurrency)
					h.forward(b, round/10)
					var bareTime, ourTime, bareCPU, ourCPU time.Duration
					n := 0
					b.ReportAllocs()
					for b.Loop() {
						c0 := cpuTime(b)
						bareTime += bare(b, rawURL, round, concurrency)
						c1 := cpuTime(b)
						ourTime += h.forward(b, round)
						bareCPU += c1 - c0
						ourCPU += cpuTime(b) - c1
						n += round
					}
					b.ReportMetric(float64(n)/bareTime.Seconds(), "bare/s")
					b.ReportMetric(float64(n)/ourTime.Seconds(), "deliveries/s")
					b.ReportMetric(bareTime.Seconds()/ourTime.Seconds(), "x_bare")
					b.ReportMetric(float64(bareCPU.Microseconds())/float64(n), "bare_us")
					b.ReportMetric(float64((ourCPU-bareCPU).Microseconds())/float64(n), "us_more")
					b.ReportMetric(0, "ns/op")
				})
			}
		}
	}
}
