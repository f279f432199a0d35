package feed

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/hookferry/analytics/webhook"
)

// BenchmarkDelivery measures the cost of a feed for each delivery, with 64 destinations and batches
// of 100 calls.
func BenchmarkDelivery(b *testing.B) {
	for _, readers := range []int{0, 1, 8} {
		b.Run(fmt.Sprint("readers=", readers), func(b *testing.B) {
			f := New()
			ctx, cancel := context.WithCancel(b.Context())
			var wg sync.WaitGroup
			defer wg.Wait()
			defer cancel()
			for range readers {
				r := f.Follow(Filter{Query: "nothing"}, Now)
				wg.Go(func() {
					for pace := time.Tick(50 * time.Millisecond); ctx.Err() == nil; <-pace {
						r.Next()
					}
				})
			}
			// With this many deliveries, hardly any delivery still has a story when its turn comes
			// again.
			ds := make([]webhook.Delivery, 1<<18)
			body := newDelivery("", "").Body
			for i := range ds {
				ds[i] = newDelivery(fmt.Sprint("destination-", i%64), fmt.Sprintf("0b5d1a9e-0000-4c0f-8a52-%012x", i))
				ds[i].Body = body
			}
			all := accepted(ds...)
			var batch []webhook.Delivery
			next := 0
			attempt := webhook.Attempt{At: time.Now(), Took: webhook.Millis(time.Millisecond), Try: 1, Endpoint: "https://a.example/", Status: 200}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if i%100 == 0 {
					if next+100 > len(ds) {
						next = 0
					}
					batch = ds[next : next+100]
					f.Accepted(webhook.Accepted{Puts: all.Puts[next : next+100], Results: all.Results[next : next+100], Stored: 100})
					next += 100
				}
				d := &batch[i%100]
				attempt.At = time.Now().Add(-time.Millisecond)
				f.Attempted(webhook.Attempted{Delivery: *d, Attempt: attempt, Outcome: webhook.OutcomeDelivered})
				f.Ended(webhook.Record{Delivery: *d, At: attempt.At})
			}
		})
	}
}
