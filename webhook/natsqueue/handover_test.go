package natsqueue

import (
	"testing"
	"time"

	"github.com/hookferry/analytics/webhook"
)

// A process may own a partition so briefly that it gives it away unread. The settlements
// of the owner before it are not lost.
func TestGivenAwayUnread(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		const n = 20
		c := Config{Partitions: 1}
		open := func() *Queue {
			t.Helper()
			q := s.open(t, c)
			q.mu.Lock()
			p := q.owned[0]
			q.mu.Unlock()
			<-p.ready
			return q
		}
		lease := func(q *Queue) []webhook.Delivery {
			t.Helper()
			ds, _, err := q.Lease(t.Context(), webhook.LeaseRequest{Max: n, Until: time.Now().Add(time.Hour)}, nil)
			if err != nil {
				t.Fatal(err)
			}
			return ds
		}
		q := open()
		if _, err := q.Put(t.Context(), deliveries("d", 0, n)...); err != nil {
			t.Fatal(err)
		}
		left := make(map[string]bool)
		for i, d := range lease(q) {
			if i%2 == 0 { // nothing is erased, as the first delivery is left
				left[d.ID] = true
			} else if err := q.Settle(t.Context(), webhook.Settlement{Verdict: webhook.Done, Delivery: d}); err != nil {
				t.Fatal(err)
			}
		}
		if len(left) != n/2 {
			t.Fatalf("%d of %d were leased", len(left), n/2)
		}
		if err := q.Close(); err != nil {
			t.Fatal(err)
		}

		guest := open()
		guest.abandon()
		guest.mu.Lock()
		claimed := guest.owned[0]
		p := newPartition(0, claimed.prefix, claimed.epoch) // as before it was read
		p.context, p.end = claimed.context, claimed.end
		for _, seq := range claimed.unerased() {
			p.settled[seq] = struct{}{}
		}
		guest.owned[0] = p
		guest.mu.Unlock()
		if err := guest.Close(); err != nil {
			t.Fatal(err)
		}

		q = open()
		defer q.Close()
		ds := lease(q)
		for _, d := range ds {
			if !left[d.ID] {
				t.Errorf("%s is done, and handed out again", d.ID)
			}
		}
		if len(ds) != len(left) {
			t.Errorf("%d were handed out, want %d", len(ds), len(left))
		}
	})
}
