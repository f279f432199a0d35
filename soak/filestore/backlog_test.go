package filestore_test

import (
	"flag"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/filequeue"
	"github.com/hookferry/analytics/webhook/store"
)

var backlog = flag.Int("backlog", 2_000, "how many deliveries wait in BenchmarkBacklog")

// BenchmarkBacklog fills a store with -backlog deliveries and reports the costs: of a put, of
// memory and of disk space. It also reports the time from Open to the first fetch, after a Close
// and after a crash, and the rate of other deliveries with the backlog.
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
	open := func(dir string) (*filequeue.Store, time.Duration) {
		start := time.Now()
		s, err := openStore(dir, filequeue.Config{})
		if err != nil {
			b.Fatal(err)
		}
		return s, time.Since(start)
	}
	metrics := map[string]float64{}
	report := func(value float64, unit string) { metrics[unit] = value }
	s, _ := open(dir)
	body := make([]byte, 450)
	batch := make([]webhook.Delivery, 500)
	start := time.Now()
	at := start.Add(due)
	for i := 0; i < *backlog; {
		for j := range batch {
			batch[j] = webhook.Delivery{
				Destination: fmt.Sprintf("destination-%d", i%lanes), ID: fmt.Sprintf("3f2c1d1e-6a54-4d0f-8a0e-%012d", i),
				Type: "track", Body: body, Accepted: start, Due: at,
			}
			i++
		}
		if _, err := put(b.Context(), s, batch...); err != nil {
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
	// The copy is what a crash would leave.
	crashed := b.TempDir()
	if err := copyStore(crashed, dir); err != nil {
		b.Fatal(err)
	}
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	report(float64(storeSize(dir))/float64(*backlog), "file-B/delivery")
	first := func(s *filequeue.Store) time.Duration {
		start := time.Now()
		if _, err := fetch(b.Context(), s, 64); err != nil {
			b.Fatal(err)
		}
		return time.Since(start)
	}
	s, took := open(crashed)
	report((took+first(s)).Seconds()*1e3, "crash-to-fetch-ms")
	s.Close()
	s, took = open(dir)
	report((took+first(s)).Seconds()*1e3, "open-to-fetch-ms")
	report(heap(), "open-heap-MB")
	defer s.Close()

	id := 0
	ds := make([]webhook.Delivery, 256)
	n := 0
	start = time.Now()
	for b.Loop() {
		now := time.Now()
		for i := range ds {
			id++
			ds[i] = webhook.Delivery{Destination: fmt.Sprintf("destination-%d", id%lanes), ID: fmt.Sprint("new-", id), Type: "track", Body: body, Accepted: now, Due: now}
		}
		if _, err := put(b.Context(), s, ds...); err != nil {
			b.Fatal(err)
		}
		var wants []store.Want
		for i := range min(lanes, len(ds)) {
			wants = append(wants, store.Want{Destination: ds[i].Destination, Max: (len(ds) + lanes - 1) / lanes})
		}
		out, err := s.Fetch(b.Context(), wants, 1<<40, nil)
		if err != nil || len(out) == 0 {
			b.Fatalf("Fetch = %d, %v; want some", len(out), err)
		}
		if err := settle(b.Context(), s, store.Done, out...); err != nil {
			b.Fatal(err)
		}
		n += len(out)
	}
	report(float64(n)/time.Since(start).Seconds(), "deliveries/s")
	for unit, value := range metrics {
		b.ReportMetric(value, unit) // at the end, as the loop resets metrics
	}
}
