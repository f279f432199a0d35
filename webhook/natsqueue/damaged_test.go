package natsqueue

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/hookferry/analytics/webhook"
)

// A delivery that cannot be read stays in the stream. Those around it are delivered and
// erased.
func TestDamaged(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		q := s.open(t, Config{Partitions: 1})
		defer q.Close()
		const n = 10
		damaged := &message{subject: q.subjects.partition(0) + kindQueue + ".d", data: []byte("?")}
		for i := range n {
			if i == n/2 {
				if err := q.publisher.store(t.Context(), damaged); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := q.Put(t.Context(), deliveries("d", i, 1)...); err != nil {
				t.Fatal(err)
			}
		}
		ds, _, err := q.Lease(t.Context(), webhook.LeaseRequest{Max: 2 * n, Until: time.Now().Add(time.Hour)}, nil)
		if err != nil || len(ds) != n {
			t.Fatalf("Lease = %d, %v; want %d", len(ds), err, n)
		}
		for _, d := range ds {
			if err := q.Settle(t.Context(), webhook.Settlement{Verdict: webhook.Done, Delivery: d}); err != nil {
				t.Fatal(err)
			}
		}
		until(t, "all but the damaged is erased", func() bool {
			pages, err := q.reader.read(t.Context(), q.config.Stream, request{Batch: 2 * n, Seq: 1, Next: q.config.Stream + ".*.q.*"})
			if err != nil {
				t.Fatal(err)
			}
			return len(pages[0]) == 1 && pages[0][0].seq == damaged.seq
		})
		if counts, err := q.Count(t.Context()); err != nil || counts.Waiting != 0 {
			t.Errorf("Count = %+v, %v; want nothing", counts, err)
		}
		q.mu.Lock()
		defer q.mu.Unlock()
		if s := q.owned[0].shelves[damaged.subject]; s == nil || len(s.live) != 0 || len(s.done) != 0 {
			t.Errorf("what is known of the subject = %+v; want the damaged message alone", s)
		}
	})
}

// A partition is taken over even if some of its records cannot be read. The others count.
func TestDamagedRecord(t *testing.T) {
	s := serve(t) // in no bubble: a goroutine that waits for ruling would have its time stand still
	c := Config{Partitions: 1}
	a := s.open(t, c)
	defer a.Close()
	if n, err := a.Put(t.Context(), deliveries("d", 0, 2)...); n != 2 || err != nil {
		t.Fatalf("Put = %d, %v", n, err)
	}
	ds, _, err := a.Lease(t.Context(), webhook.LeaseRequest{Max: 1, Until: time.Now().Add(time.Hour)}, nil)
	if err != nil || len(ds) != 1 {
		t.Fatalf("Lease = %d, %v", len(ds), err)
	}
	a.ruling.Lock() // the test decides who owns the partition
	defer a.ruling.Unlock()
	p := a.owned[0]
	<-p.ready
	p.end() // nothing is erased from now on
	if err := a.Settle(t.Context(), webhook.Settlement{Verdict: webhook.Done, Delivery: ds[0]}); err != nil {
		t.Fatal(err)
	}
	epoch := decimal(p.epoch)
	for _, m := range []*message{
		{subject: p.prefix + kindDone, data: []byte("?"), header: nats.Header{headerEpoch: {epoch}}},
		{subject: p.prefix + kindDone, data: []byte("?")},
		{subject: p.prefix + kindQueue + ".d", data: []byte("?"), header: nats.Header{headerFrom: {"?"}}},
	} {
		if err := a.publisher.store(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	b := s.open(t, c)
	defer b.Close()
	b.ruling.Lock()
	defer b.ruling.Unlock()
	seize(t, b, 0)
	left, _, err := b.Lease(t.Context(), webhook.LeaseRequest{Max: 10, Until: time.Now().Add(time.Hour)}, nil)
	if err != nil || len(left) != 1 || left[0].ID == ds[0].ID {
		t.Errorf("Lease of what was taken over = %v, %v; want the one that is not done", left, err)
	}
}
