//go:build !race

// The race detector allocates by itself.

package boltqueue_test

import (
	"fmt"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/boltqueue"
)

// What a delivery costs in allocations, from Put to Settle, the committer's
// included, whatever the size of the calls.
func TestCommitAllocations(t *testing.T) {
	for _, n := range []int{64, 1024} {
		q, err := boltqueue.Open(filepath.Join(t.TempDir(), "queue.db"), nil)
		if err != nil {
			t.Fatal(err)
		}
		ds := make([]webhook.Delivery, n)
		ss := make([]webhook.Settlement, n)
		out := make([]webhook.Delivery, 0, n)
		id := 0
		var put, settle uint64
		const rounds = 5
		for round := range 1 + rounds {
			now := time.Now()
			for i := range ds {
				id++
				ds[i] = webhook.Delivery{Destination: fmt.Sprint("d", i%10), ID: fmt.Sprint(id), Type: "track", Body: make([]byte, 450), Accepted: now, Due: now}
			}
			before := mallocs()
			if k, err := q.Put(t.Context(), ds...); k != n || err != nil {
				t.Fatalf("Put = %d, %v", k, err)
			}
			between := mallocs()
			out, _, err = q.Lease(t.Context(), webhook.LeaseRequest{Max: n, Until: now.Add(time.Hour)}, out[:0])
			if err != nil || len(out) != n {
				t.Fatalf("Lease = %d, %v", len(out), err)
			}
			for i := range out {
				ss[i] = webhook.Settlement{Verdict: webhook.Done, Delivery: out[i]}
			}
			leased := mallocs()
			if err := q.Settle(t.Context(), ss...); err != nil {
				t.Fatal(err)
			}
			if round > 0 { // the first makes the buffers
				put += between - before
				settle += mallocs() - leased
			}
		}
		if err := q.Close(); err != nil {
			t.Fatal(err)
		}
		const calls = 64 // allocations of a call and its commit
		if limit := uint64(rounds * (5*n/2 + calls)); put > limit {
			t.Errorf("a put of %d allocates %d times, want at most %d", n, put/rounds, limit/rounds)
		}
		if limit := uint64(rounds * (n/16 + calls)); settle > limit {
			t.Errorf("settling %d allocates %d times, want at most %d", n, settle/rounds, limit/rounds)
		}
	}
}

func mallocs() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs
}
