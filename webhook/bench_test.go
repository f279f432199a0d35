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
	"runtime"
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

// A process is one that a benchmark has started.
type process struct {
	b   *testing.B
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// start starts a process of this program and returns it with the first line
// that it prints. It ends with the benchmark, if not before.
func start(b *testing.B, name string, args ...any) (p *process, line string) {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "HOOKFERRY_BENCH_PROCESS="+strings.TrimSpace(name+" "+fmt.Sprintln(args...)))
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
	p = &process{b, cmd, in, bufio.NewReader(out)}
	b.Cleanup(p.end)
	return p, p.line()
}

// line returns the next line that p prints.
func (p *process) line() string {
	p.b.Helper()
	line, err := p.out.ReadString('\n')
	if err != nil {
		p.b.Fatal(err)
	}
	return strings.TrimSpace(line)
}

// end ends p, if it was not ended before.
func (p *process) end() {
	p.in.Close()
	if p.cmd.ProcessState == nil {
		p.cmd.Wait()
	}
}

// nullReceiver starts a receiver in a process of its own and returns its URL.
func nullReceiver(b *testing.B) string {
	b.Helper()
	_, addr := start(b, "null")
	return "http://" + addr + "/hook"
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
	h.start(b, webhook.Config{Queue: q, Observer: &h.ended}, rawURL, destinations, concurrency)
	return h
}

// start runs a forwarder until the benchmark has ended.
func (h *bench) start(b *testing.B, c webhook.Config, rawURL string, destinations, concurrency int) {
	b.Helper()
	c.MaxInFlight, c.MaxConcurrent = concurrency, concurrency
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
		if err := c.Queue.Close(); err != nil {
			b.Error(err)
		}
	})
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

// A countedQueue counts what it has settled as done, so that a forwarder without
// an Observer can be waited for.
type countedQueue struct {
	webhook.Queue
	ended *endings
}

func (q countedQueue) Settle(ctx context.Context, ss ...webhook.Settlement) error {
	err := q.Queue.Settle(ctx, ss...)
	for i := range ss {
		if err == nil && ss[i].Verdict == webhook.Done {
			q.ended.Ended(webhook.Ended{})
		}
	}
	return err
}

// BenchmarkObserver prints as x_none the deliveries a second with an Observer
// that does nothing, to those without one, in turn; us_more is its processor
// time and B_more its garbage for each delivery. The store is in memory.
func BenchmarkObserver(b *testing.B) {
	const round, concurrency = 10_000, 64
	rawURL := nullReceiver(b)
	var hs [2]*bench
	for i, o := range []webhook.Observer{nil, attempts(func(webhook.Attempted) {})} {
		h := &bench{ended: endings{reached: make(chan struct{}, 1)}}
		q := countedQueue{memqueue.New(memqueue.Config{}), &h.ended}
		h.start(b, webhook.Config{Queue: q, Observer: o}, rawURL, 1, concurrency)
		h.forward(b, round)
		hs[i] = h
	}
	var took, cpu [2]time.Duration
	var garbage [2]uint64
	n := 0
	for b.Loop() {
		for k := range hs {
			i := (k + n/round) % 2
			var m0, m1 runtime.MemStats
			runtime.ReadMemStats(&m0)
			c := cpuTime(b)
			took[i] += hs[i].forward(b, round)
			cpu[i] += cpuTime(b) - c
			runtime.ReadMemStats(&m1)
			garbage[i] += m1.TotalAlloc - m0.TotalAlloc
		}
		n += round
	}
	b.ReportMetric(took[0].Seconds()/took[1].Seconds(), "x_none")
	b.ReportMetric(float64((cpu[1]-cpu[0]).Nanoseconds())/1e3/float64(n), "us_more")
	b.ReportMetric((float64(garbage[1])-float64(garbage[0]))/float64(n), "B_more")
	b.ReportMetric(0, "ns/op")
}
