package webhook_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/internal/bench"
	"github.com/hookferry/analytics/webhook/memqueue"
	"github.com/hookferry/analytics/webhook/store"
)

var stores = []struct {
	name string
	open func(b *testing.B) webhook.Store
}{
	{"mem", func(*testing.B) webhook.Store { return testkit.Must(memqueue.Open(memqueue.Config{})) }},
	{"file", openFile},
}

// BenchmarkDeliveries reports deliveries per second and their processor time, and compares them
// with bare HTTP requests; see bench.Load.Compare. The receiver runs in another process.
func BenchmarkDeliveries(b *testing.B) {
	for _, s := range stores {
		for _, destinations := range []int{1, 10} {
			for _, concurrency := range []int{16, 64, 128} {
				b.Run(fmt.Sprintf("store=%s/destinations=%d/concurrency=%d", s.name, destinations, concurrency), func(b *testing.B) {
					l := bench.NewLoad(b, s.open(b), destinations, concurrency)
					b.ReportAllocs()
					l.Compare(func() time.Duration { return cpuTime(b) })
				})
			}
		}
	}
}

// BenchmarkBatches compares a destination that takes 100 events in a request with one that takes one;
// see bench.Batches.
func BenchmarkBatches(b *testing.B) {
	for _, s := range stores {
		b.Run("store="+s.name, func(b *testing.B) {
			bench.Batches(b, s.open, func() time.Duration { return cpuTime(b) })
		})
	}
}

// A countedQueue counts the deliveries that it has settled as Done. The benchmark waits for this
// count when the forwarder has no Observer.
type countedQueue struct {
	webhook.Store
	ended *bench.Endings
}

func (q countedQueue) Settle(ctx context.Context, ss []store.Settlement) (int, error) {
	n, err := q.Store.Settle(ctx, ss)
	for i := range ss[:n] {
		if ss[i].Verdict == store.Done {
			q.ended.Ended(webhook.Record{})
		}
	}
	return n, err
}

// BenchmarkObserver compares a forwarder whose Observer does nothing with a forwarder that has no
// Observer. It measures them alternately, with a store in memory. x_none is the ratio of their
// deliveries per second. us_more is the added processor time per delivery, in microseconds, and
// B_more the added allocation, in bytes.
func BenchmarkObserver(b *testing.B) {
	const concurrency = 64
	round := *bench.Round
	rawURL := bench.Receiver(b)
	var hs [2]*bench.Load
	for i, o := range [][]webhook.Observer{nil, {attempts(func(webhook.Attempted) {})}} {
		ended := bench.NewEndings()
		q := countedQueue{testkit.Must(memqueue.Open(memqueue.Config{})), ended}
		h := bench.StartLoad(b, webhook.Config{Store: q, Observers: o}, ended, rawURL, 1, concurrency)
		h.Forward(round)
		hs[i] = h
	}
	var took, cpu [2]time.Duration
	var garbage [2]uint64
	n := 0
	for b.Loop() {
		for k := range hs {
			i := (k + n/round) % 2
			var m0, m1 runtime.MemStats
			runtime.ReadMemStats(&m0)
			c := cpuTime(b)
			took[i] += hs[i].Forward(round)
			cpu[i] += cpuTime(b) - c
			runtime.ReadMemStats(&m1)
			garbage[i] += m1.TotalAlloc - m0.TotalAlloc
		}
		n += round
	}
	b.ReportMetric(took[0].Seconds()/took[1].Seconds(), "x_none")
	b.ReportMetric(float64((cpu[1]-cpu[0]).Nanoseconds())/1e3/float64(n), "us_more")
	b.ReportMetric((float64(garbage[1])-float64(garbage[0]))/float64(n), "B_more")
	b.ReportMetric(0, "ns/op")
}
