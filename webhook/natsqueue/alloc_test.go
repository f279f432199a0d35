//go:build !race

package natsqueue

import (
	"testing"

	"github.com/hookferry/analytics/webhook/store"
)

// Fetch and Settle of deliveries in memory allocate nothing per delivery. The bound is a tenth of
// an allocation, for the calls themselves.
func TestFetchAllocatesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		q := ready(s.open(t, Config{Partitions: 1}))
		defer q.Close()
		const n = 500
		mustPut(t, q, deliveries("d", 0, n)...)
		dst, ss := make([]store.Delivery, 0, n), make([]store.Settlement, n)
		wants := []store.Want{{Destination: "d", Max: n}}
		if all := testing.AllocsPerRun(20, func() {
			var err error
			if dst, err = q.Fetch(t.Context(), wants, 1<<30, dst[:0]); err != nil || len(dst) != n {
				t.Fatalf("Fetch = %d, %v; want %d", len(dst), err, n)
			}
			for i := range ss {
				ss[i] = store.Settlement{Verdict: store.Return, Delivery: dst[i]}
			}
			if n, err := q.Settle(t.Context(), ss); n != len(ss) || err != nil {
				t.Fatalf("Settle = %d, %v; want %d", n, err, len(ss))
			}
		}); all > n/10 {
			t.Errorf("got %v allocations for %d deliveries, want at most %d", all, n, n/10)
		}
	})
}
