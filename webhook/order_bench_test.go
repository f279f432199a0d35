package webhook_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/filequeue"
	"github.com/hookferry/analytics/webhook/internal/bench"
	"github.com/hookferry/analytics/webhook/store"
)

// BenchmarkOrdered compares events that have a Key with events that have none; see bench.Ordered.
func BenchmarkOrdered(b *testing.B) {
	for _, s := range stores {
		b.Run("store="+s.name, func(b *testing.B) { bench.Ordered(b, s.open) })
	}
}

// behindKey is how many deliveries are behind another one in BenchmarkBehind.
const behindKey = 1_000_000

// BenchmarkBehind measures a file store in which a million deliveries are behind one with their Key
// that has failed and waits for its next attempt. It reports the heap of the store, and the time from
// Open to the first Fetch after a crash. Then it delivers events of the same destination with 10,000
// other Keys, in turn with the same events in an empty store. It reports their number a second when
// they come in batches, and at 1,000 a second the 99th percentile of the time from Forward to the
// stored outcome.
func BenchmarkBehind(b *testing.B) {
	for b.Loop() {
		var lags [2]lag
		var took [2]time.Duration
		var loads [2]*bench.Load
		for i, s := range []webhook.Store{openFile(b), openBehind(b)} {
			lags[i].Endings = bench.NewEndings()
			loads[i] = bench.StartLoad(b, webhook.Config{Store: s, Observers: []webhook.Observer{&lags[i]}}, lags[i].Endings, bench.Receiver(b), 1, 64)
			loads[i].Keys = 10_000
			loads[i].Forward(*bench.Round)
		}
		const turns = 10
		for range turns {
			for i, l := range loads {
				took[i] += l.Forward(*bench.Round)
			}
		}
		for i := range lags {
			lags[i].took = nil
		}
		for range turns {
			for _, l := range loads {
				l.Pace(1000, time.Millisecond)
			}
		}
		n := float64(turns * *bench.Round)
		b.ReportMetric(n/took[0].Seconds(), "alone/s")
		b.ReportMetric(n/took[1].Seconds(), "beside/s")
		b.ReportMetric(percentile(lags[0].took, 0.99), "alone-p99-ms")
		b.ReportMetric(percentile(lags[1].took, 0.99), "beside-p99-ms")
	}
	b.ReportMetric(0, "ns/op")
}

// A lag notes how long deliveries took.
type lag struct {
	*bench.Endings
	mu   sync.Mutex
	took []time.Duration // from Forward to the outcome
}

func (l *lag) Ended(r webhook.Record) {
	l.mu.Lock()
	l.took = append(l.took, time.Since(r.Accepted))
	l.mu.Unlock()
	l.Endings.Ended(r)
}

// openBehind returns a store with deliveries behind another one.
func openBehind(b *testing.B) webhook.Store {
	before := heap()
	dir, crashed := b.TempDir(), filepath.Join(b.TempDir(), "copy")
	s, err := filequeue.Open(dir, filequeue.Config{})
	must(b, err)
	ps, out := make([]store.Put, 1000), make([]store.Result, 1000)
	now := s.Now()
	for i := 0; i <= behindKey; i += len(ps) {
		for j := range ps {
			ps[j].Delivery = store.Delivery{Destination: "d0", ID: fmt.Sprint("behind-", i+j), Key: "behind", Type: "track", Body: bench.Body, Accepted: now, Due: now}
		}
		must(b, s.Put(b.Context(), ps, out))
	}
	ds, err := s.Fetch(b.Context(), []store.Want{{Destination: "d0", Max: 10}}, 1<<20, nil)
	if err != nil || len(ds) != 1 {
		b.Fatal(len(ds), err)
	}
	ds[0].Due, ds[0].Expires, ds[0].Tries = now.Add(time.Hour), now.Add(4*time.Hour), 1
	_, err = s.Settle(b.Context(), []store.Settlement{{Verdict: store.Retry, Delivery: ds[0]}})
	must(b, err)
	ps[0].ID, ps[0].Key = "first", "first"
	must(b, s.Put(b.Context(), ps[:1], out))
	b.ReportMetric((heap()-before)/1e6, "heap-MB")
	must(b, os.CopyFS(crashed, os.DirFS(dir))) // the folder as a crash would leave it
	must(b, s.Close())

	began := time.Now()
	s, err = filequeue.Open(crashed, filequeue.Config{})
	must(b, err)
	ds, err = s.Fetch(b.Context(), []store.Want{{Destination: "d0", Max: 10}}, 1<<20, nil)
	if err != nil || len(ds) != 1 || ds[0].ID != "first" {
		b.Fatal(len(ds), err)
	}
	b.ReportMetric(time.Since(began).Seconds(), "first-s")
	b.ReportMetric((heap()-before)/1e6, "reopened-MB")
	_, err = s.Settle(b.Context(), []store.Settlement{{Verdict: store.Done, Delivery: ds[0]}})
	must(b, err)
	return s
}

func heap() float64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}
