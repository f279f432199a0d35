package webhook_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/boltqueue"
)

// openBolt opens a store in a file of its own.
func openBolt(b *testing.B) webhook.Queue {
	b.Helper()
	q, err := boltqueue.Open(filepath.Join(b.TempDir(), "bench.db"), nil)
	if err != nil {
		b.Fatal(err)
	}
	return q
}

// BenchmarkForwardDurable prints how many events a second are durable, in calls
// of one event from 64 goroutines, and of 100 from 16.
func BenchmarkForwardDurable(b *testing.B) {
	for _, tt := range []struct{ batch, callers int }{{1, 64}, {100, 16}} {
		b.Run(fmt.Sprintf("batch=%d/callers=%d", tt.batch, tt.callers), func(b *testing.B) {
			q := openBolt(b)
			f, err := webhook.New(webhook.Config{Queue: q, Destinations: []webhook.Destination{
				{ID: "d", Secret: "shh", Endpoints: []webhook.Endpoint{{URL: "http://127.0.0.1:9/hook"}}},
			}})
			if err != nil {
				b.Fatal(err)
			}
			defer q.Close()
			var next atomic.Int64
			b.ReportAllocs()
			b.SetParallelism(max(1, tt.callers/runtime.GOMAXPROCS(0)))
			b.RunParallel(func(pb *testing.PB) {
				events := make([]webhook.Event, tt.batch)
				for pb.Next() {
					at := next.Add(int64(tt.batch))
					now := time.Now()
					for i := range events {
						events[i] = webhook.Event{ID: fmt.Sprint("message-", at+int64(i)), Type: "track", Body: benchBody, Received: now}
					}
					if err := f.ForwardEvents(context.Background(), []string{"d"}, events...); err != nil {
						b.Error(err)
						return
					}
				}
			})
			b.ReportMetric(float64(b.N*tt.batch)/b.Elapsed().Seconds(), "events/s")
		})
	}
}

// BenchmarkIdleLatency prints how long one event takes from Forward to its
// receiver while nothing else goes on.
func BenchmarkIdleLatency(b *testing.B) {
	arrived := make(chan time.Time, 1)
	receiver := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { arrived <- time.Now() }))
	defer receiver.Close()
	h := newBench(b, openBolt(b), receiver.URL, 1, 16)
	var took []time.Duration
	for b.Loop() {
		time.Sleep(2 * time.Millisecond) // idle
		start := time.Now()
		e := webhook.Event{ID: fmt.Sprint("message-", h.next.Add(1)), Type: "track", Body: benchBody, Received: start}
		if err := h.ForwardEvents(context.Background(), h.destinations, e); err != nil {
			b.Fatal(err)
		}
		took = append(took, (<-arrived).Sub(start))
	}
	slices.Sort(took)
	b.ReportMetric(took[len(took)/2].Seconds()*1e3, "p50-ms")
	b.ReportMetric(took[len(took)*99/100].Seconds()*1e3, "p99-ms")
	b.ReportMetric(0, "ns/op")
}
