package natsqueue

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/hookferry/analytics/webhook"
)

// Memory that is too small for anything only means that everything is read when it
// is its turn: each delivery is handed out once, and nothing is left.
func TestNoMemory(t *testing.T) {
	t.Parallel()
	c := Config{Stream: nameOf(t.TempDir()), Claim: busyClaim, Partitions: 4, CacheBytes: 1}
	q, other := openWith(t, c), openWith(t, c)
	defer q.Close()
	defer other.Close()
	const putters, puts, each = 4, 50, 5
	var wg sync.WaitGroup
	for p := range putters {
		wg.Go(func() {
			to := []*Queue{q, other}[p%2]
			for i := range puts {
				ds := deliveries(fmt.Sprint("d", i%6), (p*puts+i)*each, each)
				for j := range ds {
					if j == 0 { // it waits, and not in the order it was put
						ds[j].Due = time.Now().Add(soon + time.Duration(i%3)*100*time.Millisecond)
					}
				}
				if n, err := to.Put(t.Context(), ds...); n != each || err != nil {
					t.Errorf("Put = %d, %v", n, err)
				}
			}
		})
	}
	seen := make(map[string]bool)
	until(t, time.Minute, "all are handed out", func() bool {
		for _, x := range []*Queue{q, other} {
			ds, _, err := x.Lease(t.Context(), webhook.LeaseRequest{Max: 40, Until: time.Now().Add(time.Minute)}, nil)
			if err != nil {
				t.Fatal(err)
			}
			ss := make([]webhook.Settlement, len(ds))
			for i, d := range ds {
				if seen[d.ID] || d.Due.After(time.Now()) {
					t.Errorf("%s, due %v, was handed out; before: %v", d.ID, d.Due, seen[d.ID])
				}
				seen[d.ID] = true
				ss[i] = webhook.Settlement{Verdict: webhook.Done, Delivery: d}
			}
			if err := x.Settle(t.Context(), ss...); err != nil {
				t.Fatal(err)
			}
		}
		return len(seen) == putters*puts*each
	})
	wg.Wait()
	if counts, err := q.Count(t.Context()); err != nil || counts.Waiting != 0 {
		t.Errorf("Count = %+v, %v; want nothing", counts, err)
	}
	// All of it is erased in the end.
	until(t, startTime, "the stream has no deliveries", func() bool {
		pages, err := q.reader.read(t.Context(), c.Stream, request{Batch: 10, Seq: 1, Next: c.Stream + ".*.q.*"})
		return err == nil && len(pages[0]) == 0
	})
}

// What is read for a Lease while its partition comes to be given away is not handed out:
// it may be another's by then.
func TestLeaseOfGivenAway(t *testing.T) {
	t.Parallel()
	q := openWith(t, Config{Stream: nameOf(t.TempDir()), Claim: time.Hour, Partitions: 1, CacheBytes: 1})
	defer q.Close()
	if n, err := q.Put(t.Context(), deliveries("d", 0, 1)...); n != 1 || err != nil {
		t.Fatalf("Put = %d, %v", n, err)
	}
	asked, leased := make(chan struct{}), make(chan []webhook.Delivery)
	q.reader.mu.Lock() // what is read does not come before this is let go
	go func() {
		ds, _, err := q.Lease(t.Context(), webhook.LeaseRequest{Max: 1, Until: time.Now().Add(time.Hour), Room: func(string) int {
			close(asked)
			return 1
		}}, nil)
		if err != nil {
			t.Errorf("Lease: %v", err)
		}
		leased <- ds
	}()
	<-asked
	q.mu.Lock()
	p := q.owned[0]
	q.drain(p)
	if n := p.leases(); n != 0 {
		t.Errorf("%d are leased of what is to be given away", n)
	}
	q.mu.Unlock()
	q.reader.mu.Unlock()
	if ds := <-leased; len(ds) > 0 {
		t.Errorf("%d were handed out of a partition that is given away", len(ds))
	}
}
