package natsqueue

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"runtime"
	"testing"
	"time"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/internal/bench"
	"github.com/hookferry/analytics/webhook/queuetest"
)

func openDefault(t testing.TB, dir string) webhook.Queue {
	return openWith(t, Config{Stream: nameOf(dir), Logger: slog.New(slog.DiscardHandler)})
}

func BenchmarkQueue(b *testing.B) { queuetest.Bench(b, openDefault) }

// openApart is openDefault with a server that is a process of its own.
func openApart(b *testing.B) *Queue {
	_, url := bench.Start(b, serverVariable+"=1")
	return openAt(b, url, Config{Logger: slog.New(slog.DiscardHandler)})
}

// BenchmarkDeliveries has the server and the receiver as processes of the same
// machine.
func BenchmarkDeliveries(b *testing.B) {
	bench.Deliveries(b, func(b *testing.B) webhook.Queue { return openApart(b) })
}

// BenchmarkReplicated is BenchmarkDeliveries with three servers that each keep all, on the same
// processors, in this process. What they tell each other passes through a relay.
func BenchmarkReplicated(b *testing.B) {
	bench.Deliveries(b, func(b *testing.B) webhook.Queue {
		return openAt(b, startCluster(b, 3).url(), Config{Replicas: 3, Logger: slog.New(slog.DiscardHandler)})
	})
}

func BenchmarkIdleLatency(b *testing.B) { bench.IdleLatency(b, openApart(b)) }

var backlog = flag.Int("backlog", 1000, "how many deliveries wait in BenchmarkBacklog")

// BenchmarkBacklog is BenchmarkDeliveries beside deliveries that wait, one in two
// of which is due at a time of its own. It prints the heap of this process beside them.
func BenchmarkBacklog(b *testing.B) {
	bench.Deliveries(b, func(b *testing.B) webhook.Queue {
		q := openApart(b)
		due := time.Now().Add(time.Hour)
		for left := *backlog; left > 0; left -= 1000 {
			ds := make([]webhook.Delivery, min(left, 1000))
			for i := range ds {
				ds[i] = webhook.Delivery{Destination: "waits", ID: fmt.Sprint(left - i), Type: "track", Body: bench.Body, Accepted: time.Now(), Due: due}
				if i%2 == 0 {
					ds[i].Due = due.Add(time.Duration(i) * time.Minute)
				}
			}
			if n, err := q.Put(context.Background(), ds...); n != len(ds) || err != nil {
				b.Fatalf("Put = %d, %v", n, err)
			}
		}
		until(b, time.Minute, "what waits is seen", func() bool {
			q.mu.Lock()
			defer q.mu.Unlock()
			early := 0
			for _, p := range q.owned {
				early += len(p.early)
			}
			return early == 0
		})
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		b.Cleanup(func() { b.ReportMetric(float64(m.HeapAlloc)/(1<<20), "heap-MB") }) // the loop forgets it
		return q
	})
}
