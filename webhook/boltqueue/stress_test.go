package boltqueue_test

import (
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hookferry/analytics/internal/soak"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/boltqueue"
)

// TestRetriesWhileReading has rows come into a lane while others of it are read
// without the lock: none is passed over, and none is handed out twice.
func TestRetriesWhileReading(t *testing.T) {
	soak.Only(t, "file-retries")
	for seed := range soak.Seeds(t, 1) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) { testRetriesWhileReading(t, seed) })
	}
}

func testRetriesWhileReading(t *testing.T, seed uint64) {
	const n, tries, workers = 600, 6, 4
	q, err := boltqueue.Open(filepath.Join(t.TempDir(), "queue.db"), &boltqueue.Config{CacheBytes: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	due := time.Now().Add(-time.Hour)
	place := 1 + int64(seed%n) // where a retry goes among the others
	for i := range n {
		d := webhook.Delivery{Destination: "a", ID: fmt.Sprint(i), Due: due.Add(time.Duration(i) * time.Second)}
		if _, err := q.Put(t.Context(), d); err != nil {
			t.Fatal(err)
		}
	}
	var left atomic.Int64
	left.Store(n * tries)
	var wg sync.WaitGroup
	until := time.Now().Add(time.Hour)
	for range workers {
		wg.Go(func() {
			idle, before := 0, int64(0) // how often nothing was handed out, with so many left
			for left.Load() > 0 {
				ds, next, err := q.Lease(t.Context(), webhook.LeaseRequest{Max: 3, Until: until}, nil)
				if err != nil {
					t.Errorf("Lease: %v", err)
					return
				}
				for _, d := range ds {
					s := webhook.Settlement{Verdict: webhook.Retry, Delivery: d}
					s.Delivery.Tries++
					s.Delivery.Due = due.Add(time.Duration((d.Due.Unix()*place)%n) * time.Second)
					if s.Delivery.Tries == tries {
						s.Verdict = webhook.Done
					}
					if err := q.Settle(t.Context(), s); err != nil {
						t.Errorf("Settle: %v", err)
						return
					}
					left.Add(-1)
				}
				if len(ds) > 0 || left.Load() <= 0 {
					continue
				}
				// All must be leased by the other workers, or done. If some
				// are neither, and still nothing is handed out, they were
				// passed over.
				counts, err := q.Count(t.Context())
				if err != nil || counts.Claimed > 0 || counts.Waiting == 0 {
					continue
				}
				if now := left.Load(); now != before {
					idle, before = 0, now
				}
				if idle++; idle == 1000 {
					t.Errorf("%d deliveries wait, and nothing is handed out before %v", counts.Waiting, next)
					return
				}
			}
		})
	}
	wg.Wait()
	counts, err := q.Count(t.Context())
	if err != nil || counts != (webhook.Counts{}) {
		t.Errorf("Count = %+v, %v, want nothing left", counts, err)
	}
	check(t, q)
}
