package filestore_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/filequeue"
)

// BenchmarkPutPaced puts 20 deliveries each millisecond, even if earlier calls have not returned.
// It reports how long a call takes, counted from its planned start. Nothing is delivered, so all
// deliveries stay in the store.
func BenchmarkPutPaced(b *testing.B) {
	for _, lanes := range []int{10, 10_000} {
		b.Run(fmt.Sprintf("endpoints=%d", lanes), func(b *testing.B) { benchPaced(b, lanes) })
	}
}

func benchPaced(b *testing.B, lanes int) {
	const size, pace = 20, time.Millisecond
	s, err := openStore(b.TempDir(), filequeue.Config{})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	body := make([]byte, 450)
	var (
		calls sync.WaitGroup
		mu    sync.Mutex
		took  []time.Duration
		id    int
	)
	next := time.Now()
	for b.Loop() {
		time.Sleep(time.Until(next))
		due := next
		ds := make([]webhook.Delivery, size)
		for i := range ds {
			ds[i] = webhook.Delivery{
				Destination: fmt.Sprintf("destination-%d", id%lanes), ID: fmt.Sprintf("3f2c1d1e-6a54-4d0f-8a0e-%012d", id),
				Type: "track", Body: body, Accepted: due, Due: due,
			}
			id++
		}
		calls.Go(func() {
			if n, err := put(b.Context(), s, ds...); n != size || err != nil {
				b.Errorf("Put = %d, %v; want %d", n, err, size)
			}
			mu.Lock()
			defer mu.Unlock()
			took = append(took, time.Since(due))
		})
		next = next.Add(pace)
	}
	calls.Wait()
	slices.Sort(took)
	for name, part := range map[string]float64{"p50-ms": 0.5, "p99-ms": 0.99, "p99.9-ms": 0.999, "max-ms": 1} {
		at := took[int(part*float64(len(took)-1))]
		b.ReportMetric(float64(at)/float64(time.Millisecond), name)
	}
	b.ReportMetric(float64(size*len(took))/b.Elapsed().Seconds(), "puts/s")
}
