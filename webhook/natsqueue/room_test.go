package natsqueue

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/hookferry/analytics/webhook"
)

// openStill opens a store of one partition that it stops reading, as if messages were slow
// to come. The function that it returns starts the reading again.
func openStill(t *testing.T, s *testServer, c Config) (q *Queue, p *partition, read func()) {
	t.Helper()
	c.Claim, c.Partitions = time.Hour, 1
	q = s.open(t, c)
	t.Cleanup(func() {
		if err := q.Close(); err != nil {
			t.Error(err)
		}
	})
	q.mu.Lock()
	p = q.owned[0]
	q.mu.Unlock()
	<-p.ready
	p.end()
	return q, p, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		var reading context.Context
		reading, p.end = context.WithCancel(q.background)
		follow := q.tail(p.prefix+">", p.seen+1, func(seq uint64, m *nats.Msg) bool { return q.saw(p, seq, m) })
		q.goroutines.Go(func() { follow.run(reading) })
	}
}

// Deliveries that are settled make room at once, even if the messages that say so are slow
// to come.
func TestRoomOfSettled(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		q, p, read := openStill(t, s, Config{MaxBytes: 1 << 20})
		all := deliveries("d", 0, 15)
		for i := range all {
			all[i].Body = bytes.Repeat([]byte("x"), 64<<10)
		}
		if n, err := q.Put(t.Context(), all...); n != len(all) || err != nil {
			t.Fatalf("Put = %d, %v", n, err)
		}
		more := deliveries("d", len(all), 2)
		for i := range more {
			more[i].Body = all[0].Body
		}
		if n, err := q.Put(t.Context(), more...); n != 0 || !errors.Is(err, webhook.ErrQueueFull) {
			t.Fatalf("Put of what is too much = %d, %v", n, err)
		}
		leased, _, err := q.Lease(t.Context(), webhook.LeaseRequest{Max: len(all), Until: time.Now().Add(time.Hour)}, nil)
		if err != nil || len(leased) != len(all) {
			t.Fatalf("Lease = %d, %v", len(leased), err)
		}
		var ss []webhook.Settlement
		for _, d := range leased {
			ss = append(ss, webhook.Settlement{Verdict: webhook.Done, Delivery: d})
		}
		if err := q.Settle(t.Context(), ss...); err != nil {
			t.Fatal(err)
		}
		put := make(chan error)
		go func() {
			_, err := q.Put(t.Context(), more...)
			put <- err
		}()
		until(t, "Put waits for the settlements", func() bool {
			select {
			case err := <-put:
				t.Fatalf("Put, once there is room: %v", err)
			default:
			}
			q.mu.Lock()
			defer q.mu.Unlock()
			return p.reached != nil
		})
		read()
		if err := <-put; err != nil {
			t.Errorf("Put, once there is room: %v", err)
		}
	})
}

// A subject is not forgotten while a delivery that was put under it is in memory and its
// message has yet to come. Else the message would be erased before the delivery is settled,
// or never.
func TestShelfOfUnseen(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		q, p, read := openStill(t, s, Config{})
		put := func(id int) webhook.Delivery {
			t.Helper()
			if n, err := q.Put(t.Context(), deliveries("d", id, 1)...); n != 1 || err != nil {
				t.Fatalf("Put = %d, %v", n, err)
			}
			ds, _, err := q.Lease(t.Context(), webhook.LeaseRequest{Max: 1, Until: time.Now().Add(time.Hour)}, nil)
			if err != nil || len(ds) != 1 {
				t.Fatalf("Lease = %d, %v", len(ds), err)
			}
			return ds[0]
		}
		left := func(want int) {
			t.Helper()
			until(t, "what is settled is erased, and that alone", func() bool {
				pages, err := q.reader.read(t.Context(), q.config.Stream, request{Batch: 10, Seq: 1, Next: q.config.Stream + ".*.q.*"})
				if err != nil {
					t.Fatal(err)
				}
				return len(pages[0]) == want
			})
		}
		first := put(0)
		if err := q.Settle(t.Context(), webhook.Settlement{Verdict: webhook.Done, Delivery: first}); err != nil {
			t.Fatal(err)
		}
		read()
		until(t, "it is seen to be settled", func() bool {
			q.mu.Lock()
			defer q.mu.Unlock()
			return p.seen >= p.recorded
		})
		p.end()
		second := put(1)
		left(1)
		if err := q.Settle(t.Context(), webhook.Settlement{Verdict: webhook.Done, Delivery: second}); err != nil {
			t.Fatal(err)
		}
		read()
		left(0)
	})
}
