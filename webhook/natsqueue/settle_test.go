package natsqueue

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/hookferry/analytics/webhook"
)

// The largest delivery that can be put can be put back, buried and revived, whatever was
// added to it since.
func TestLargest(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		q := s.open(t, Config{Partitions: 1})
		defer q.Close()
		d := deliveries("d", 0, 1)[0]
		d.Body = make([]byte, maxPayload/2)
		record, err := d.AppendBinary(nil)
		if err != nil {
			t.Fatal(err)
		}
		d.Body = make([]byte, len(d.Body)+maxPayload-headerRoom-recordRoom-len(record)+1)
		if n, err := q.Put(t.Context(), d); err == nil {
			t.Fatalf("Put of what is too large = %d, %v", n, err)
		}
		d.Body = d.Body[1:]
		if n, err := q.Put(t.Context(), d); n != 1 || err != nil {
			t.Fatalf("Put of the largest = %d, %v", n, err)
		}
		lease := func() webhook.Delivery {
			t.Helper()
			ds, _, err := q.Lease(t.Context(), webhook.LeaseRequest{Max: 2, Until: time.Now().Add(time.Hour)}, nil)
			if err != nil || len(ds) != 1 {
				t.Fatalf("Lease = %d, %v", len(ds), err)
			}
			return ds[0]
		}
		d = lease()
		d.Tries, d.Expires = 1<<53, time.Now().Add(time.Hour)
		for range webhook.MaxEndpoints {
			d.Closed = append(d.Closed, webhook.Closed{Endpoint: 1 << 63, Until: d.Expires})
		}
		for range webhook.MaxAttempts {
			d.Attempts = append(d.Attempts, webhook.Attempt{At: time.Now(), Endpoint: strings.Repeat("x", 1000), Error: strings.Repeat("x", 256), Answer: strings.Repeat("x", 256)})
		}
		if err := q.Settle(t.Context(), webhook.Settlement{Verdict: webhook.Retry, Delivery: d}); err != nil {
			t.Fatalf("Retry of the largest: %v", err)
		}
		again := lease()
		if again.Tries != d.Tries || len(again.Closed) != len(d.Closed) {
			t.Errorf("put back with %d tries and %d endpoints closed, want %d and %d", again.Tries, len(again.Closed), d.Tries, len(d.Closed))
		}
		few := []webhook.Attempt{{At: time.Now(), Endpoint: "x", Error: strings.Repeat("x", 60)}}
		for i, attempts := range [][]webhook.Attempt{d.Attempts, few} {
			again.Tries, again.Expires, again.Closed, again.Attempts = d.Tries, d.Expires, d.Closed, attempts
			if err := q.Settle(t.Context(), webhook.Settlement{Verdict: webhook.Bury, Delivery: again, Reason: webhook.ReasonServerError, At: time.Now()}); err != nil {
				t.Fatalf("Bury of the largest: %v", err)
			}
			var keys []string
			for dead, err := range q.Dead(t.Context(), webhook.DeadFilter{}, "") {
				if err != nil || len(dead.Body) != len(d.Body) || len(dead.Attempts) != i {
					t.Errorf("the dead letter has a body of %d bytes and %d attempts, %v; want %d and %d", len(dead.Body), len(dead.Attempts), err, len(d.Body), i)
				}
				keys = append(keys, dead.Key)
			}
			if n, err := q.Revive(t.Context(), keys...); n != 1 || err != nil {
				t.Fatalf("Revive of the %d = %d, %v", len(keys), n, err)
			}
			again = lease()
		}
	})
}

// If the server erases so little that all settlements do not fit into one message, the
// deed does not repeat them. None is lost by that.
func TestTooMuchUnerased(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		c := Config{Partitions: 1}
		q := s.open(t, c)
		if n, err := q.Put(t.Context(), deliveries("d", 0, 3)...); n != 3 || err != nil {
			t.Fatalf("Put = %d, %v", n, err)
		}
		p := q.owned[0]
		<-p.ready
		until(t, "what was put is seen", q.seesAll)
		ds, _, err := q.Lease(t.Context(), webhook.LeaseRequest{Max: 2, Until: time.Now().Add(time.Hour)}, nil)
		if err != nil || len(ds) != 2 {
			t.Fatalf("Lease = %d, %v", len(ds), err)
		}
		q.mu.Lock()
		for _, s := range p.shelves {
			for i := range uint64(wholeMost) + 1 {
				s.done[1<<40+i] = struct{}{} // for messages that are yet to come, so that nothing is erased
			}
		}
		p.records = recordsKept
		q.mu.Unlock()
		if err := q.Settle(t.Context(), webhook.Settlement{Verdict: webhook.Done, Delivery: ds[0]}, webhook.Settlement{Verdict: webhook.Done, Delivery: ds[1]}); err != nil {
			t.Fatal(err)
		}
		q.mu.Lock()
		if p.whole != 0 || p.records > 1 {
			t.Errorf("the record at %d tells everything; %d have not since, want 1", p.whole, p.records)
		}
		q.mu.Unlock()
		if err := q.Close(); err != nil {
			t.Fatal(err)
		}
		js, err := jetstream.New(s.connect(t))
		if err != nil {
			t.Fatal(err)
		}
		stream, err := js.Stream(t.Context(), DefaultStream)
		if err != nil {
			t.Fatal(err)
		}
		m, err := stream.GetLastMsgForSubject(t.Context(), p.prefix+kindOwner)
		if err != nil {
			t.Fatal(err)
		}
		if d, err := parseDeed(m.Data); err != nil || d.Node != nobody || len(d.Settled) > 0 {
			t.Errorf("the deed gives the partition to %q and tells %d bytes, %v; want to %q, and none", d.Node, len(d.Settled), err, nobody)
		}
		other := s.open(t, c)
		defer other.Close()
		until(t, "what is not settled is leased", func() bool {
			ds, _, err = other.Lease(t.Context(), webhook.LeaseRequest{Max: 10, Until: time.Now().Add(time.Hour)}, nil)
			if err != nil {
				t.Fatal(err)
			}
			return len(ds) > 0
		})
		if len(ds) != 1 || ds[0].ID != "2" {
			t.Errorf("Lease by the next owner = %v; want the one that is not settled", ds)
		}
	})
}
