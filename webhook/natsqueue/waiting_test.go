package natsqueue

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/internal/bench"
)

// BenchmarkWaiting prints the bytes that a replica of the stream needs for a delivery that
// waits, including its body of 450 bytes.
func BenchmarkWaiting(b *testing.B) {
	q := queueOf(openDefault(b, b.TempDir()))
	defer q.Close()
	ctx := context.Background()
	const n, batch = 5000, 100
	next := 0
	for b.Loop() {
		for end := next + n; next < end; next += batch {
			ds := make([]webhook.Delivery, batch)
			for i := range ds {
				ds[i] = webhook.Delivery{
					Destination: "waits", ID: fmt.Sprintf("3f2c1d1e-6a54-4d0f-8a0e-%012d", next+i), Type: "track", Body: bench.Body,
					Accepted: time.Now(), Due: time.Now().Add(time.Hour),
				}
			}
			if _, err := q.Put(ctx, ds...); err != nil {
				b.Fatal(err)
			}
		}
	}
	stream, err := q.js.Stream(ctx, q.config.Stream)
	if err != nil {
		b.Fatal(err)
	}
	info := stream.CachedInfo()
	b.ReportMetric(float64(info.State.Bytes)/float64(next), "B/waiting")
	b.ReportMetric(0, "ns/op")
}
