package bench

import (
	"fmt"
	"math"
	"testing"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/store"
)

// Store measures the speed of the stores that open returns. It measures puts alone, and the life of
// a delivery: put, fetch and settle. It uses several batch sizes and numbers of destinations. A store
// must have room for some millions of deliveries.
func Store(b *testing.B, open func(b *testing.B) webhook.Store) {
	for _, endpoints := range []int{1, 10, 10_000} {
		for _, batch := range []int{1, 64, 512} {
			for _, op := range []string{"put", "life"} {
				b.Run(fmt.Sprintf("op=%s/batch=%d/endpoints=%d", op, batch, endpoints), func(b *testing.B) {
					r := &rig{B: b, s: open(b), batch: batch, endpoints: endpoints}
					b.ReportAllocs()
					for b.Loop() {
						switch r.put(); {
						case op == "life":
							r.settle()
						case r.stored-r.settled > 50_000: // keep the backlog short, unmeasured
							b.StopTimer()
							r.settle()
							b.StartTimer()
						}
					}
					b.ReportMetric(float64(b.N*batch)/b.Elapsed().Seconds(), "deliveries/s")
					if err := r.s.Close(); err != nil {
						b.Error(err)
					}
				})
			}
		}
	}
}

// A rig is a store under measurement.
type rig struct {
	*testing.B
	s                webhook.Store
	batch, endpoints int
	stored, settled  int
	ps               []store.Put
	wants            []store.Want
	out              []webhook.Delivery
	ss               []store.Settlement
}

// destination returns the destination of the n-th delivery that is put.
func (r *rig) destination(n int) string { return fmt.Sprintf("destination-%d", n%r.endpoints) }

// put puts one batch.
func (r *rig) put() {
	at, results := r.s.Now(), make([]store.Result, r.batch)
	r.ps = r.ps[:0]
	for range r.batch {
		id := fmt.Sprintf("3f2c1d1e-6a54-4d0f-8a0e-%012d", r.stored)
		r.ps = append(r.ps, store.Put{Delivery: webhook.Delivery{Destination: r.destination(r.stored), ID: id, Type: "track", Body: Body, Accepted: at, Due: at}})
		r.stored++
	}
	if err := r.s.Put(r.Context(), r.ps, results); err != nil || !results[0].Stored {
		r.Fatalf("Put = %v, %v", results[0], err)
	}
}

// settle fetches and settles all deliveries that were put, in batches, in the order of the puts.
func (r *rig) settle() {
	for r.settled < r.stored {
		r.wants, r.ss = r.wants[:0], r.ss[:0]
		for i := range min(r.batch, r.endpoints) {
			r.wants = append(r.wants, store.Want{Destination: r.destination(r.settled + i), Max: (r.batch + r.endpoints - 1 - i) / r.endpoints})
		}
		var err error
		if r.out, err = r.s.Fetch(r.Context(), r.wants, math.MaxInt64, r.out[:0]); err != nil || len(r.out) == 0 {
			r.Fatalf("Fetch = %d, %v", len(r.out), err)
		}
		for i := range r.out {
			r.ss = append(r.ss, store.Settlement{Verdict: store.Done, Delivery: r.out[i]})
		}
		if n, err := r.s.Settle(r.Context(), r.ss); n != len(r.ss) || err != nil {
			r.Fatalf("Settle of %d = %d, %v", len(r.ss), n, err)
		}
		r.settled += len(r.out)
	}
}
