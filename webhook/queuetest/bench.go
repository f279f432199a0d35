package queuetest

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/hookferry/analytics/webhook"
)

// Bench measures a store: what a put costs, what handing out and settling costs,
// and the life of a delivery, for batches of several sizes over several
// destinations, with bodies of 450 bytes. The store has to have room for some
// millions of deliveries.
func Bench(b *testing.B, open Open) {
	for _, endpoints := range []int{1, 10, 10_000} {
		for _, batch := range []int{1, 64, 512} {
			for _, op := range []string{"put", "settle", "life"} {
				b.Run(fmt.Sprintf("op=%s/batch=%d/endpoints=%d", op, batch, endpoints), func(b *testing.B) {
					r := newRig(b, open, endpoints, batch)
					waiting := 0
					for b.Loop() {
						if op == "settle" {
							b.StopTimer()
						}
						r.put()
						waiting += batch
						b.StartTimer()
						if op == "put" && waiting < 50_000 { // a put is measured, not a backlog
							continue
						}
						if op == "put" {
							b.StopTimer()
						}
						for ; waiting > 0; waiting -= batch {
							r.settle()
						}
						b.StartTimer()
					}
					r.report(b.N)
				})
			}
		}
	}
	for _, putters := range []int{16, 64} {
		b.Run(fmt.Sprintf("op=put/batch=1/putters=%d", putters), func(b *testing.B) {
			r := newRig(b, open, 10, 1)
			b.SetParallelism(max(1, putters/runtime.GOMAXPROCS(0)))
			b.RunParallel(func(pb *testing.PB) {
				own := *r
				own.ps, own.results = make([]webhook.Put, 1), make([]webhook.Result, 1)
				for pb.Next() {
					own.put()
				}
			})
			r.report(b.N)
		})
	}
}

// A rig is a store that is measured.
type rig struct {
	b       *testing.B
	s       webhook.Store
	batch   int
	names   []string
	id      *atomic.Int64 // of the latest put
	settled int
	body    []byte
	ps      []webhook.Put
	results []webhook.Result
	wants   []webhook.Want
	out     []webhook.Delivery
	ss      []webhook.Settlement
}

func newRig(b *testing.B, open Open, endpoints, batch int) *rig {
	s := open(b, b.TempDir())
	b.Cleanup(func() {
		if err := s.Close(); err != nil {
			b.Error(err)
		}
	})
	r := &rig{b: b, s: s, batch: batch, body: make([]byte, 450), id: new(atomic.Int64), ps: make([]webhook.Put, batch), results: make([]webhook.Result, batch)}
	for i := range endpoints {
		r.names = append(r.names, fmt.Sprintf("destination-%d", i))
	}
	for i := range r.body {
		r.body[i] = 'a' + byte(i%26)
	}
	b.ReportAllocs()
	return r
}

func (r *rig) put() {
	at := r.s.Now()
	for i := range r.ps {
		id := int(r.id.Add(1))
		r.ps[i].Delivery = webhook.Delivery{
			Destination: r.names[id%len(r.names)],
			ID:          fmt.Sprintf("3f2c1d1e-6a54-4d0f-8a0e-%012d", id),
			Type:        "track",
			Body:        r.body,
			Accepted:    at,
			Due:         at,
		}
	}
	if err := r.s.Put(context.Background(), r.ps, r.results); err != nil || !r.results[0].Stored {
		r.b.Errorf("Put = %v, %v", r.results[0], err)
	}
}

// settle fetches the batch that was put first, and settles it.
func (r *rig) settle() {
	for left := r.batch; left > 0; {
		r.wants = r.wants[:0]
		for i := range min(left, len(r.names)) {
			r.wants = append(r.wants, webhook.Want{Destination: r.names[(r.settled+1+i)%len(r.names)], Max: (left - i + len(r.names) - 1) / len(r.names)})
		}
		var err error
		r.out, err = r.s.Fetch(context.Background(), r.wants, noLimit, r.out[:0])
		if err != nil || len(r.out) == 0 {
			r.b.Fatalf("Fetch for %d = %d, %v", left, len(r.out), err)
		}
		r.ss = r.ss[:0]
		for i := range r.out {
			r.ss = append(r.ss, webhook.Settlement{Verdict: webhook.Done, Delivery: r.out[i]})
		}
		if n, err := r.s.Settle(context.Background(), r.ss); n != len(r.ss) || err != nil {
			r.b.Fatal(n, err)
		}
		left -= len(r.out)
		r.settled += len(r.out)
	}
}

func (r *rig) report(n int) {
	r.b.StopTimer()
	r.b.ReportMetric(float64(n*r.batch)/r.b.Elapsed().Seconds(), "deliveries/s")
}
