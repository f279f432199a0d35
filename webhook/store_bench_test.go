package webhook_test

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/filequeue"
	"github.com/hookferry/analytics/webhook/internal/bench"
)

// openFile opens a file store in a new folder.
func openFile(b *testing.B) webhook.Store {
	b.Helper()
	s, err := filequeue.Open(b.TempDir(), filequeue.Config{})
	must(b, err)
	return s
}

// BenchmarkForwardDurable reports how many events per second are stored durably: with one event per
// call from 64 goroutines, and with 100 events per call from 16.
func BenchmarkForwardDurable(b *testing.B) {
	for _, tt := range []struct{ batch, callers int }{{1, 64}, {100, 16}} {
		b.Run(fmt.Sprintf("store=file/batch=%d/callers=%d", tt.batch, tt.callers), func(b *testing.B) {
			q := openFile(b)
			f, err := webhook.New(webhook.Config{Store: q, Destinations: []webhook.Destination{
				{ID: "d", Secret: "shh", Endpoints: []webhook.Endpoint{{URL: "http://127.0.0.1:9/hook"}}},
			}})
			must(b, err)
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
	b.Run("store=file", func(b *testing.B) { bench.IdleLatency(b, openFile(b)) })
}
