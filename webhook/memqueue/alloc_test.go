//go:build !race

// The race detector allocates by itself.

package memqueue_test

import (
	"fmt"
	"testing"

	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/webhook/memqueue"
	"github.com/hookferry/analytics/webhook/store"
)

// A delivery costs three allocations from Put to Settle: the store copies the delivery, its id and
// its body. A destination that had no deliveries costs two more, for itself and its name.
func TestAllocations(t *testing.T) {
	for _, destinations := range []int{1, 100} {
		t.Run(fmt.Sprintf("destinations=%d", destinations), func(t *testing.T) {
			const runs = 200
			s := testkit.Must(memqueue.Open(memqueue.Config{}))
			defer s.Close()
			ps := make([]store.Put, 100)
			results := make([]store.Result, len(ps))
			var wants []store.Want
			for i := range destinations {
				wants = append(wants, store.Want{Destination: fmt.Sprint("destination-", i), Max: len(ps) / destinations})
			}
			ds := make([]store.Delivery, 0, len(ps))
			ss := make([]store.Settlement, len(ps))
			var ids []string
			for i := range (runs + 1) * len(ps) {
				ids = append(ids, fmt.Sprint("message-", i))
			}
			body := make([]byte, 450)
			allocated := testing.AllocsPerRun(runs, func() {
				for i := range ps {
					ps[i] = store.Put{Keep: i%2 == 0, Delivery: store.Delivery{Destination: wants[i%destinations].Destination, ID: ids[i], Type: "track", Body: body, Due: s.Now()}}
				}
				ids = ids[len(ps):]
				if err := s.Put(t.Context(), ps, results); err != nil {
					t.Fatal(err)
				}
				var err error
				if ds, err = s.Fetch(t.Context(), wants, 1<<20, ds[:0]); err != nil || len(ds) != len(ps)/2 {
					t.Fatalf("Fetch = %d, %v; want %d", len(ds), err, len(ps)/2)
				}
				for i, d := range ds {
					ss[i] = store.Settlement{Verdict: store.Done, Delivery: d}
				}
				for i := range len(ps) / 2 {
					d := ps[2*i].Delivery
					d.Claim = results[2*i].Claim
					ss[len(ds)+i] = store.Settlement{Verdict: store.Done, Delivery: d}
				}
				if n, err := s.Settle(t.Context(), ss); n != len(ss) || err != nil {
					t.Fatalf("Settle = %d, %v; want %d", n, err, len(ss))
				}
			})
			// The other 12 allocations are for the list of a large Put, and for the growing dedup
			// window.
			if most := float64(3*len(ps) + 2*destinations + 12); allocated > most {
				t.Errorf("%d deliveries to %d destinations: got %v allocations, want at most %v", len(ps), destinations, allocated, most)
			}
		})
	}
}
