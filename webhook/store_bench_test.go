package webhook_test

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/boltqueue"
	"github.com/hookferry/analytics/webhook/filequeue"
	"github.com/hookferry/analytics/webhook/internal/bench"
)

// openBolt opens a store in a file of its own.
func openBolt(b *testing.B) webhook.Store {
	b.Helper()
	q, err := boltqueue.Open(filepath.Join(b.TempDir(), "bench.db"), nil)
	if err != nil {
		b.Fatal(err)
	}
	return webhook.FromQueue(q)
}

// openFile opens a store in a folder of its own.
func openFile(b *testing.B) webhook.Store {
	b.Helper()
	s, err := filequeue.Open(b.TempDir(), filequeue.Config{})
	if err != nil {
		b.Fatal(err)
	}
	return s
}

var durable = []struct {
	name string
	open func(*testing.B) webhook.Store
}{{"bolt", openBolt}, {"file", openFile}}

// BenchmarkForwardDurable prints how many events a second are durable, in calls
// of one event from 64 goroutines, and of 100 from 16.
func BenchmarkForwardDurable(b *testing.B) {
	for i := range 2 * len(durable) {
		store, tt := durable[i/2], []struct{ batch, callers int }{{1, 64}, {100, 16}}[i%2]
		b.Run(fmt.Sprintf("store=%s/batch=%d/callers=%d", store.name, tt.batch, tt.callers), func(b *testing.B) {
			q := store.open(b)
			f, err := webhook.New(webhook.Config{Store: q, Destinations: []webhook.Destination{
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
				events := make([]event.Event, tt.batch)
				for pb.Next() {
					at := next.Add(int64(tt.batch))
					now := time.Now()
					for i := range events {
						events[i] = event.Event{ID: fmt.Sprint("message-", at+int64(i)), Type: "track", Body: bench.Body, Received: now}
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

func BenchmarkIdleLatency(b *testing.B) {
	for _, store := range durable {
		b.Run("store="+store.name, func(b *testing.B) { bench.IdleLatency(b, store.open(b)) })
	}
}
