package analytics

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/internal/uuid"
)

// tenProperties returns typical properties of a busy shop: text, all kinds of numbers, a
// boolean, a time, a list and an object.
func tenProperties() map[string]any {
	return map[string]any{
		"order_id": "ord_4f8b2c9e",
		"total":    129.95,
		"currency": "EUR",
		"items":    3,
		"coupon":   nil,
		"express":  true,
		"customer": int64(8675309),
		"placed":   time.Date(2026, 3, 4, 5, 6, 7, 891e6, time.UTC),
		"tags":     []string{"spring", "returning", "mobile"},
		"shipping": map[string]any{"city": "Tromsø", "zip": "9008"},
	}
}

// discard is a transport that discards requests and answers 200.
type discard struct{}

func (discard) RoundTrip(req *http.Request) (*http.Response, error) {
	_, err := io.Copy(io.Discard, req.Body)
	req.Body.Close()
	return &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody}, err
}

func benchClient() *Client {
	c := New("k")
	c.Transport = discard{}
	return c
}

// jsonTrack has the same JSON as a Track message, for encoding/json.
type jsonTrack struct {
	Type       string         `json:"type"`
	MessageID  string         `json:"messageId"`
	Timestamp  string         `json:"timestamp"`
	UserID     string         `json:"userId"`
	Event      string         `json:"event"`
	Properties map[string]any `json:"properties"`
}

// ratios runs the functions in turn, up to 500 times each, in up to 41 rounds. It returns
// the median times of the first function divided by those of each other function. After a
// benchmark of few iterations, it runs them equally few times.
func ratios(b *testing.B, fs ...func()) []float64 {
	rounds, calls := min(41, b.N), min(500, b.N)
	times := make([][]time.Duration, len(fs))
	for range rounds {
		for i, f := range fs {
			start := time.Now()
			for range calls {
				f()
			}
			times[i] = append(times[i], time.Since(start))
		}
	}
	for i := range times {
		slices.Sort(times[i])
	}
	var r []float64
	for _, t := range times[1:] {
		r = append(r, float64(times[0][rounds/2])/float64(t[rounds/2]))
	}
	return r
}

// BenchmarkTrack measures a call whose map already exists. It uses one processor, so that
// the time includes the uploads, which a transport discards. It prints the ratio to
// json.Marshal of the same message and to the baselines, which it measures alternately in the
// same run.
func BenchmarkTrack(b *testing.B) {
	for _, flushAt := range []int{DefaultFlushAt, 250, MaxBatchCalls} {
		b.Run(fmt.Sprintf("flushAt=%d", flushAt), func(b *testing.B) {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
			c := benchClient()
			c.FlushAt = flushAt
			props := tenProperties()
			call := func() {
				if err := c.Track(&Track{UserId: "u-2041", Event: "Order Completed", Properties: props}); err != nil && err != ErrQueueFull {
					b.Fatal(err)
				}
			}
			id := string(uuid.Append(nil))
			marshal := func() {
				_, err := json.Marshal(&jsonTrack{"track", id, FormatTime(time.Now()), "u-2041", "Order Completed", props})
				if err != nil {
					b.Fatal(err)
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				call()
			}
			b.StopTimer()
			r := ratios(b, call, marshal, newBaseline((*baseline).anyMap).track, newBaseline((*baseline).tenMap).track)
			b.ReportMetric(r[0], "x_json.Marshal")
			b.ReportMetric(r[1], "x_baseline")
			b.ReportMetric(r[2], "x_shape")
			if err := c.Close(); err != nil {
				b.Fatal(err)
			}
			if s := c.Stats(); s.Refused > 0 {
				b.ReportMetric(float64(s.Refused)/float64(s.Queued+s.Refused), "refused/op")
			}
		})
	}
}

// BenchmarkTrackParallel measures calls from several goroutines at once.
//
// For the throughput, in calls/s of all goroutines together, the goroutines only make
// calls. It is also printed as a multiple of the throughput of one goroutine, measured
// alternately. For the latency, the goroutines hash 16 KB between their calls, so that all
// processors are busy. Half of the calls take at most p50, and all but one in a thousand
// take at most p99.9. Each figure is the median of several rounds.
func BenchmarkTrackParallel(b *testing.B) {
	for _, goroutines := range []int{1, 2, 8, 64} {
		b.Run(fmt.Sprintf("goroutines=%d", goroutines), func(b *testing.B) {
			c := benchClient()
			c.FlushAt = 250
			c.MaxMemory = 1 << 30 // large enough that no call is refused, because refusing is fast
			const calls = 8 << 10
			for b.Loop() {
				race(b, goroutines, calls, c, nil)
			}
			b.StopTimer()
			elapsed, rounds := b.Elapsed(), min(7, b.N)
			var one, all []time.Duration
			for range rounds {
				one = append(one, race(b, 1, calls, c, nil))
				all = append(all, race(b, goroutines, calls, c, nil))
			}
			slices.Sort(one)
			slices.Sort(all)
			var p50, p999 []time.Duration
			for range rounds {
				took := make([]time.Duration, min(16, b.N)<<10)
				race(b, goroutines, len(took), c, took)
				slices.Sort(took)
				p50 = append(p50, took[len(took)/2])
				p999 = append(p999, took[len(took)*999/1000])
			}
			slices.Sort(p50)
			slices.Sort(p999)
			if err := c.Close(); err != nil {
				b.Fatal(err)
			}
			n := float64(b.N * calls)
			b.ReportMetric(float64(elapsed)/n, "ns/op") // time per call, not per race
			b.ReportMetric(n/elapsed.Seconds(), "calls/s")
			b.ReportMetric(float64(one[rounds/2])/float64(all[rounds/2]), "x_one_goroutine")
			b.ReportMetric(float64(p50[rounds/2]), "p50-ns")
			b.ReportMetric(float64(p999[rounds/2]), "p99.9-ns")
		})
	}
}

// race makes n calls of c from several goroutines and returns the total time. took is nil or
// has n elements. If it is not nil, the goroutines hash between their calls, and race sets
// took to the time of each call.
func race(b *testing.B, goroutines, n int, c *Client, took []time.Duration) time.Duration {
	var wg sync.WaitGroup
	begin := time.Now()
	for i := range goroutines {
		first, last := n*i/goroutines, n*(i+1)/goroutines
		wg.Go(func() {
			m := &Track{UserId: "u-2041", Event: "Order Completed", Properties: tenProperties()}
			work := make([]byte, 16<<10)
			for j := first; j < last; j++ {
				var start time.Time
				if took != nil {
					sum := sha256.Sum256(work)
					copy(work, sum[:])
					start = time.Now()
				}
				if err := c.Track(m); err != nil {
					b.Error(err)
					return
				}
				if took != nil {
					took[j] = time.Since(start)
				}
			}
		})
	}
	wg.Wait()
	return time.Since(begin)
}

// BenchmarkLoopback measures delivery to a server on a loopback socket that reads and
// answers every request.
func BenchmarkLoopback(b *testing.B) {
	for _, flushAt := range []int{DefaultFlushAt, 250} {
		b.Run(fmt.Sprintf("flushAt=%d", flushAt), func(b *testing.B) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				io.Copy(io.Discard, r.Body)
				io.WriteString(w, `{"success":true}`)
			}))
			defer server.Close()
			c := New("k")
			c.Endpoint = server.URL
			c.FlushAt = flushAt
			props := tenProperties()
			b.ReportAllocs()
			for b.Loop() {
				for c.Track(&Track{UserId: "u-2041", Event: "Order Completed", Properties: props}) == ErrQueueFull {
					c.Flush(b.Context())
				}
			}
			if err := c.Close(); err != nil {
				b.Fatal(err)
			}
			s := c.Stats()
			b.ReportMetric(float64(s.Delivered)/b.Elapsed().Seconds(), "events/s")
			b.ReportMetric(float64(s.Delivered)/float64(s.Batches), "events/batch")
		})
	}
}

// Once the collecting batch has grown to its size, a call allocates nothing.
func TestTrackDoesNotAllocate(t *testing.T) {
	c := benchClient()
	c.FlushAt = MaxBatchCalls
	c.FlushAfter = time.Hour
	props := tenProperties()
	call := func() {
		if err := c.Track(&Track{UserId: "u-2041", Event: "Order Completed", Properties: props}); err != nil {
			t.Fatal(err)
		}
	}
	for range 500 { // let the collecting batch grow to the size needed below
		call()
	}
	if err := c.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	const limit = 0
	if n := testing.AllocsPerRun(400, call); n > limit && !testkit.Race {
		t.Errorf("Track allocates %v times, want %d", n, limit)
	}
	closeClient(t, c)
}
