package filequeue_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/hookferry/analytics/webhook/filequeue"
	"github.com/hookferry/analytics/webhook/store"
)

// BenchmarkWaiting reports the cost of a backlog of a million deliveries: the heap, and the time
// from Open to the first Fetch after a crash. It also reports how many deliveries are put and
// drained per second, and how long a page of 50 deliveries takes: of one destination, its dead letters,
// those until the middle of the time, by an id that does not occur, and of all destinations.
func BenchmarkWaiting(b *testing.B) {
	for _, destinations := range []int{10, 10_000} {
		b.Run(fmt.Sprintf("deliveries=1000000/destinations=%d", destinations), func(b *testing.B) {
			for b.Loop() {
				benchWaiting(b, 1_000_000, destinations)
			}
		})
	}
}

func heap() float64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

func benchWaiting(b *testing.B, n, destinations int) {
	dir := b.TempDir()
	before := heap()
	s, err := filequeue.Open(dir, filequeue.Config{})
	if err != nil {
		b.Fatal(err)
	}
	body := make([]byte, 450)
	ps, out := make([]store.Put, 1000), make([]store.Result, 1000)
	began := time.Now()
	for i := 0; i < n; i += len(ps) {
		for j := range ps {
			ps[j].Delivery = store.Delivery{Destination: fmt.Sprint("destination-", (i+j)%destinations), ID: fmt.Sprintf("3f2c1d1e-6a54-4d0f-8a0e-%012d", i+j), Type: "track", Body: body, Accepted: began.Add(time.Duration(i+j-n) * time.Millisecond), Due: began}
		}
		if err := s.Put(b.Context(), ps, out); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(n)/time.Since(began).Seconds(), "puts/s")
	b.ReportMetric((heap()-before)/1e6, "heap-MB")
	crashed := filepath.Join(b.TempDir(), "copy") // the folder as a crash would leave it
	if err := os.CopyFS(crashed, os.DirFS(dir)); err != nil {
		b.Fatal(err)
	}
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	began = time.Now()
	if s, err = filequeue.Open(crashed, filequeue.Config{}); err != nil {
		b.Fatal(err)
	}
	ds, err := s.Fetch(b.Context(), []store.Want{{Destination: "destination-0", Max: 10}}, 1<<20, nil)
	if err != nil || len(ds) != 10 {
		b.Fatal(len(ds), err)
	}
	b.ReportMetric(time.Since(began).Seconds(), "first-s")
	b.ReportMetric((heap()-before)/1e6, "reopened-MB")
	one := []string{"destination-7"}
	for metric, q := range map[string]store.Query{
		"page-ms":       {Destinations: one},
		"page-dead-ms":  {Destinations: one, States: []store.State{store.StateDead}},
		"page-until-ms": {Destinations: one, To: began.Add(-time.Duration(n) * time.Millisecond / 2)},
		"page-id-ms":    {Destinations: one, ID: "none"},
		"page-all-ms":   {},
	} {
		began := time.Now()
		if _, _, err := s.List(b.Context(), q, 0, 50); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(time.Since(began).Seconds()*1e3, metric)
	}
	began = time.Now()
	drained := 0
	for i := 0; drained < 100_000; i++ {
		var wants []store.Want
		for j := range 64 {
			wants = append(wants, store.Want{Destination: fmt.Sprint("destination-", (64*i+j)%destinations), Max: 8})
		}
		ds, err := s.Fetch(b.Context(), wants[:min(len(wants), destinations)], 1<<24, ds[:0])
		if err != nil {
			b.Fatal(err)
		}
		ss := make([]store.Settlement, len(ds))
		for i := range ds {
			ss[i] = store.Settlement{Verdict: store.Done, Delivery: ds[i]}
		}
		if _, err := s.Settle(b.Context(), ss); err != nil {
			b.Fatal(err)
		}
		drained += len(ds)
	}
	b.ReportMetric(float64(drained)/time.Since(began).Seconds(), "drained/s")
	b.ReportMetric(0, "ns/op")
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkErase reports what others notice while the deliveries of one user are erased. A million
// deliveries wait, of which every hundredth is the user's. Meanwhile another goroutine puts one
// delivery after the other. The benchmark reports the longest of these puts without an erasure
// (alone-ms) and during one (beside-ms), and how long the erasure takes.
func BenchmarkErase(b *testing.B) {
	const n = 1_000_000
	s, err := filequeue.Open(b.TempDir(), filequeue.Config{})
	if err != nil {
		b.Fatal(err)
	}
	body := make([]byte, 450)
	delivery := func(i int, user string) store.Put {
		now := time.Now()
		return store.Put{Delivery: store.Delivery{Destination: fmt.Sprint("destination-", i%100), ID: fmt.Sprint(i), User: user, Body: body, Accepted: now, Due: now}}
	}
	ps, out := make([]store.Put, 1000), make([]store.Result, 1000)
	id := 0
	// longest puts deliveries until done is closed, and returns how long the longest put took.
	longest := func(done <-chan struct{}) (most time.Duration) {
		for {
			select {
			case <-done:
				return most
			default:
			}
			id++
			began := time.Now()
			if err := s.Put(b.Context(), []store.Put{delivery(id, "other")}, out[:1]); err != nil {
				b.Error(err)
				return most
			}
			most = max(most, time.Since(began))
		}
	}
	for b.Loop() {
		for range n / len(ps) {
			for j := range ps {
				id++
				user := "other"
				if id%100 == 0 {
					user = "erased"
				}
				ps[j] = delivery(id, user)
			}
			if err := s.Put(b.Context(), ps, out); err != nil {
				b.Fatal(err)
			}
		}
		done := make(chan struct{})
		var took time.Duration
		go func() {
			defer close(done)
			began := time.Now()
			if erased, _, err := s.Erase(b.Context(), "erased"); err != nil || erased < n/100 {
				b.Errorf("Erase = %d, %v, want at least %d", erased, err, n/100)
			}
			took = time.Since(began)
		}()
		beside := longest(done)
		later := make(chan struct{})
		time.AfterFunc(took, func() { close(later) })
		alone := longest(later)
		b.ReportMetric(took.Seconds(), "erase-s")
		b.ReportMetric(beside.Seconds()*1e3, "beside-ms")
		b.ReportMetric(alone.Seconds()*1e3, "alone-ms")
	}
	b.ReportMetric(0, "ns/op")
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
}
