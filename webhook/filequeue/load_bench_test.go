package filequeue_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/hookferry/analytics/webhook/filequeue"
	"github.com/hookferry/analytics/webhook/internal/bench"
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

// BenchmarkHistory compares deliveries with a history to deliveries without, in turn.
func BenchmarkHistory(b *testing.B) {
	for _, destinations := range []int{1, 1000} {
		b.Run(fmt.Sprint("destinations=", destinations), func(b *testing.B) {
			var stores [2]*filequeue.Store
			var loads [2]*bench.Load
			for with := range loads {
				s, err := filequeue.Open(b.TempDir(), filequeue.Config{HistoryAge: time.Duration(with) * time.Hour})
				if err != nil {
					b.Fatal(err)
				}
				stores[with], loads[with] = s, bench.NewLoad(b, s, destinations, 64)
				loads[with].Forward(bench.Batch)
			}
			var took [2]time.Duration
			n := 0
			for b.Loop() {
				for with, l := range loads {
					took[with] += l.Forward(*bench.Round)
					stores[with].AwaitJanitor()
				}
				n += *bench.Round
			}
			if c, err := stores[1].Count(b.Context()); err != nil || c.Delivered != n+bench.Batch || stores[1].Unkept() != 0 {
				b.Errorf("Count = %+v, %v, and %d are not kept; want %d delivered", c, err, stores[1].Unkept(), n+bench.Batch)
			}
			for with, name := range []string{"without", "with"} {
				b.ReportMetric(float64(n)/took[with].Seconds(), "deliveries/s-"+name)
			}
			b.ReportMetric(took[0].Seconds()/took[1].Seconds(), "x-without")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkErase reports what others notice while the deliveries of one user are erased. A million
// deliveries to 10,000 destinations wait, or were delivered and are kept; every hundredth is the user's.
// Meanwhile another goroutine puts one delivery after the other. The benchmark reports the longest of
// these puts during the erasure (beside-ms) and then without one (alone-ms), the p99.9 of both, and how
// long the erasure takes.
// Afterwards no file has any of the user's bodies. Of kept ones it also reports how many were put and
// settled per second, the heap and the disk for each, and what an Open and pages of 50 take.
func BenchmarkErase(b *testing.B) {
	for _, kept := range []bool{false, true} {
		b.Run(fmt.Sprint("kept=", kept), func(b *testing.B) {
			for b.Loop() {
				benchErase(b, kept)
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

func benchErase(b *testing.B, kept bool) {
	const n = 1_000_000
	dir, before, began := b.TempDir(), heap(), time.Now()
	c := filequeue.Config{HistoryAge: time.Hour, DedupMax: 1000} // which has 40 bytes for each
	s, err := filequeue.Open(dir, c)
	if err != nil {
		b.Fatal(err)
	}
	id := 0
	put := func(ps []store.Put, user string) (took time.Duration) {
		for j := range ps {
			id++
			name, now := user, time.Now()
			if id%100 > 0 {
				name = "other"
			}
			ps[j] = store.Put{Keep: kept, Delivery: store.Delivery{Destination: fmt.Sprint("destination-", id/100%10_000), ID: fmt.Sprintf("3f2c1d1e-6a54-4d0f-8a0e-%012d", id), User: name, Body: fmt.Appendf(nil, "%s's %450d", name, id), Accepted: now, Due: now}}
		}
		out := make([]store.Result, len(ps))
		began := time.Now()
		if err := s.Put(b.Context(), ps, out); err != nil {
			b.Fatal(err)
		}
		if took = time.Since(began); !kept {
			return took
		}
		ss := make([]store.Settlement, len(ps))
		for j := range ps {
			ps[j].Claim = out[j].Claim
			ps[j].Attempts = []store.Attempt{{At: ps[j].Due, Took: store.Millis(time.Millisecond), Try: 1, Endpoint: "https://receiver.example/hook", Status: 200, Answer: "ok"}}
			ss[j] = store.Settlement{Verdict: store.Done, Delivery: ps[j].Delivery}
		}
		if _, err := s.Settle(b.Context(), ss); err != nil {
			b.Fatal(err)
		}
		return took
	}
	ps := make([]store.Put, 1000)
	for range n / len(ps) {
		if put(ps, "erased"); kept {
			s.AwaitJanitor() // which falls behind otherwise, as in no deployment
		}
	}
	if kept {
		b.ReportMetric(n/time.Since(began).Seconds(), "settled/s")
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
		began = time.Now()
		if s, err = filequeue.Open(dir, c); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(time.Since(began).Seconds(), "open-s")
		b.ReportMetric((heap()-before)/n, "heap-B/kept")
		b.ReportMetric(float64(sizeOf(b, dir, nil))/n, "disk-B/kept")
		one := []string{"destination-7"}
		for metric, q := range map[string]store.Query{
			"page-ms": {Destinations: one}, "page-state-ms": {Destinations: one, States: []store.State{store.StateDelivered}}, "page-oldest-ms": {Destinations: one, Oldest: true}, "page-all-ms": {},
			"page-until-ms": {Destinations: one, To: time.Now().Add(-5 * time.Second)}, "page-id-ms": {Destinations: one, ID: "none"}, "page-all-id-ms": {ID: "none"},
			"page-all-oldest-id-ms": {ID: "3f2c1d1e-6a54-4d0f-8a0e-000000000001"},
		} {
			began := time.Now()
			if _, _, err := s.List(b.Context(), q, 0, 50); err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(time.Since(began).Seconds()*1e3, metric)
		}
	}
	// putUntil puts deliveries, one after the other, until done is closed, and returns how long each took.
	putUntil := func(done <-chan struct{}) (all []time.Duration) {
		for one := ps[:1]; ; {
			select {
			case <-done:
				slices.Sort(all)
				return all
			default:
				all = append(all, put(one, "another"))
			}
		}
	}
	done := make(chan struct{})
	var took time.Duration
	go func() {
		defer close(done)
		began := time.Now()
		if erased, _, err := s.Erase(b.Context(), "erased"); err != nil || erased != n/100 {
			b.Errorf("Erase = %d, %v, want %d", erased, err, n/100)
		}
		took = time.Since(began)
	}()
	beside := putUntil(done)
	if sizeOf(b, dir, []byte("erased's")); b.Failed() {
		return
	}
	later := make(chan struct{})
	time.AfterFunc(took, func() { close(later) })
	alone := putUntil(later)
	for name, all := range map[string][]time.Duration{"beside": beside, "alone": alone} {
		b.ReportMetric(all[len(all)-1].Seconds()*1e3, name+"-ms")
		b.ReportMetric(all[len(all)*999/1000].Seconds()*1e3, name+"-p99.9-ms")
	}
	b.ReportMetric(took.Seconds(), "erase-s")
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
}

// sizeOf returns the size of the files of a folder. None of them may have the text, unless it is nil.
func sizeOf(b *testing.B, dir string, text []byte) (size int64) {
	files, err := os.ReadDir(dir)
	if err != nil {
		b.Fatal(err)
	}
	for _, f := range files {
		content, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if os.IsNotExist(err) { // the store has removed it meanwhile
			continue
		}
		if size += int64(len(content)); err != nil || text != nil && bytes.Contains(content, text) {
			b.Errorf("%s has %q, %v", f.Name(), text, err)
		}
	}
	return size
}
