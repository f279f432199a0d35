package natsqueue

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/hookferry/analytics/webhook"
)

// A store without memory for deliveries reads each one when it is handed out. Each is
// handed out once, and none is left.
func TestNoMemory(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		c := Config{Partitions: 4, CacheBytes: 1}
		q, other := s.open(t, c), s.open(t, c)
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
						if j == 0 { // it waits, and is not due in the order of the puts
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
		until(t, "all are handed out", func() bool {
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
		// All messages are erased in the end.
		until(t, "the stream has no deliveries", func() bool {
			pages, err := q.reader.read(t.Context(), DefaultStream, request{Batch: 10, Seq: 1, Next: DefaultStream + ".*.q.*"})
			return err == nil && len(pages[0]) == 0
		})
	})
}

// Lease hands out nothing from a partition that is given away while Lease reads it: the
// partition may have another owner by then.
func TestLeaseOfGivenAway(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		q := s.open(t, Config{Partitions: 1, CacheBytes: 1})
		defer q.Close()
		if n, err := q.Put(t.Context(), deliveries("d", 0, 1)...); n != 1 || err != nil {
			t.Fatalf("Put = %d, %v", n, err)
		}
		asked, leased := make(chan struct{}), make(chan []webhook.Delivery)
		q.reader.mu.Lock() // no message is read until this is unlocked
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
	})
}
