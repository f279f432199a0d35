package filestore_test

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/boltqueue"
)

var backlog = flag.Int("backlog", 2_000, "how many deliveries wait in BenchmarkBacklog")

// BenchmarkBacklog fills a store with -backlog deliveries and reports what that
// costs: a put, the memory, the file, opening it and the first lease after a
// Close and after a crash, and the life of a delivery beside the backlog.
func BenchmarkBacklog(b *testing.B) {
	for _, lanes := range []int{10, 10_000} {
		for _, due := range []time.Duration{time.Hour, -time.Hour} {
			when := "later"
			if due < 0 {
				when = "now"
			}
			b.Run(fmt.Sprintf("endpoints=%d/due=%s", lanes, when), func(b *testing.B) {
				benchBacklog(b, lanes, due)
			})
		}
	}
}

func benchBacklog(b *testing.B, lanes int, due time.Duration) {
	dir := b.TempDir()
	open := func(dir string) (*boltqueue.Queue, time.Duration) {
		start := time.Now()
		q, err := openStore(dir, nil)
		if err != nil {
			b.Fatal(err)
		}
		return q, time.Since(start)
	}
	metrics := map[string]float64{}
	report := func(value float64, unit string) { metrics[unit] = value }
	q, _ := open(dir)
	body := make([]byte, 450)
	batch := make([]webhook.Delivery, 500)
	start := time.Now()
	at := start.Add(due)
	last := *backlog - min(*backlog/2, 10_000) // are in the journal when the files are copied
	for i := 0; i < *backlog; {
		if i >= last {
			// The database is not being written from here on.
			last = *backlog
			if _, err := q.Begin(b.Context(), "audience"); err != nil {
				b.Fatal(err)
			}
		}
		for j := range batch {
			batch[j] = webhook.Delivery{
				Destination: fmt.Sprintf("destination-%d", i%lanes), ID: fmt.Sprintf("3f2c1d1e-6a54-4d0f-8a0e-%012d", i),
				Type: "track", Body: body, Accepted: start, Due: at,
			}
			i++
		}
		if _, err := q.Put(b.Context(), batch...); err != nil {
			b.Fatal(err)
		}
	}
	report(float64(*backlog)/time.Since(start).Seconds(), "puts/s")
	heap := func() float64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc) / (1 << 20)
	}
	report(heap(), "heap-MB")
	// What a crash would leave.
	crashed := b.TempDir()
	if err := copyStore(crashed, dir); err != nil {
		b.Fatal(err)
	}
	if err := q.Close(); err != nil {
		b.Fatal(err)
	}
	if info, err := os.Stat(storePath(dir)); err == nil {
		report(float64(info.Size())/float64(*backlog), "file-B/delivery")
	}
	lease := func(q *boltqueue.Queue) time.Duration {
		start := time.Now()
		if _, _, err := q.Lease(b.Context(), webhook.LeaseRequest{Max: 64, Until: start.Add(time.Minute)}, nil); err != nil {
			b.Fatal(err)
		}
		return time.Since(start)
	}
	q, took := open(crashed)
	report((took+lease(q)).Seconds()*1e3, "crash-to-lease-ms")
	q.Close()
	q, took = open(dir)
	report((took+lease(q)).Seconds()*1e3, "open-to-lease-ms")
	report(heap(), "open-heap-MB")
	defer q.Close()

	id := 0
	ds := make([]webhook.Delivery, 256)
	ss := make([]webhook.Settlement, len(ds))
	out := make([]webhook.Delivery, 0, len(ds))
	n := 0
	start = time.Now()
	for b.Loop() {
		now := time.Now()
		for i := range ds {
			id++
			ds[i] = webhook.Delivery{Destination: fmt.Sprintf("destination-%d", id%lanes), ID: fmt.Sprint("new-", id), Type: "track", Body: body, Accepted: now, Due: now}
		}
		if _, err := q.Put(b.Context(), ds...); err != nil {
			b.Fatal(err)
		}
		for out = out[:0]; len(out) < len(ds); {
			had := len(out)
			var err error
			out, _, err = q.Lease(b.Context(), webhook.LeaseRequest{Max: len(ds) - had, Until: now.Add(time.Minute)}, out)
			if err != nil || len(out) == had {
				b.Fatalf("Lease = %d, %v", len(out)-had, err)
			}
		}
		for i := range out {
			ss[i] = webhook.Settlement{Verdict: webhook.Done, Delivery: out[i]}
		}
		if err := q.Settle(b.Context(), ss...); err != nil {
			b.Fatal(err)
		}
		n += len(out)
	}
	report(float64(n)/time.Since(start).Seconds(), "deliveries/s")
	for unit, value := range metrics {
		b.ReportMetric(value, unit) // the loop forgets those reported before
	}
}
