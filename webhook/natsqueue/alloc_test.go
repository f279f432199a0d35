//go:build !race

// The race detector allocates by itself.

package natsqueue

import (
	"bytes"
	"fmt"
	"log/slog"
	"runtime"
	"testing"
	"time"

	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/internal/bench"
)

// A delivery costs few allocations, including those of the connection and of reading
// messages back. The server is a process of its own.
func TestAllocations(t *testing.T) {
	_, url := bench.Start(t, serverVariable+"=1")
	q := openOn(t, connect(t, url), Config{Partitions: 4, Claim: time.Hour, Logger: slog.New(slog.DiscardHandler)})
	defer q.Close()
	body := bytes.Repeat([]byte("x"), 450)
	id := 0
	for _, n := range []int{1, 100} {
		ds := make([]webhook.Delivery, n)
		ss := make([]webhook.Settlement, n)
		out := make([]webhook.Delivery, 0, n)
		var put, settle uint64
		lease := ^uint64(0) // the least of all rounds: others may count what an erasure allocates
		const rounds = 20
		for round := range 1 + rounds {
			now := time.Now()
			for i := range ds {
				id++
				ds[i] = webhook.Delivery{Destination: fmt.Sprint("d", i%10), ID: fmt.Sprint(id), Type: "track", Body: body, Accepted: now, Due: now}
			}
			before := mallocs()
			if k, err := q.Put(t.Context(), ds...); k != n || err != nil {
				t.Fatalf("Put = %d, %v", k, err)
			}
			testkit.Until(t, "what was put is seen", q.seesAll)
			between := mallocs()
			var err error
			if out, _, err = q.Lease(t.Context(), webhook.LeaseRequest{Max: n, Until: now.Add(time.Hour)}, out[:0]); err != nil || len(out) != n {
				t.Fatalf("Lease = %d, %v", len(out), err)
			}
			leased := mallocs()
			for i := range out {
				ss[i] = webhook.Settlement{Verdict: webhook.Done, Delivery: out[i]}
			}
			if err := q.Settle(t.Context(), ss...); err != nil {
				t.Fatal(err)
			}
			if round > 0 { // the first round makes the buffers
				put += between - before
				lease = min(lease, leased-between)
				settle += mallocs() - leased
			}
		}
		const calls = 100 // allocations of a call, and of erasing messages meanwhile
		for _, c := range []struct {
			what       string
			got, limit int
		}{
			{"a Put, and reading it back,", int(put) / rounds, 40*n + calls},
			{"a Lease", int(lease), 10},
			{"a Settle", int(settle) / rounds, 3*n + calls},
		} {
			if c.got > c.limit {
				t.Errorf("%s of %d allocates %d times, want at most %d", c.what, n, c.got, c.limit)
			}
		}
	}
}

func mallocs() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs
}
