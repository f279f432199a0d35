package natsqueue

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/webhook"
)

func deliveries(destination string, from, n int) []webhook.Delivery {
	now := time.Now().Add(-time.Second)
	ds := make([]webhook.Delivery, n)
	for i := range ds {
		id := fmt.Sprint(from + i)
		ds[i] = webhook.Delivery{Destination: destination, ID: id, Type: "track", Body: []byte(id), Accepted: now, Due: now}
	}
	return ds
}

// A cable is the connections to a server, which can be cut, and then makes no new ones.
type cable struct {
	mu    sync.Mutex
	conns []net.Conn
	off   bool
}

func (c *cable) wrap(conn net.Conn) (net.Conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.off {
		conn.Close()
		return nil, errors.New("cut off")
	}
	c.conns = append(c.conns, conn)
	return conn, nil
}

func (c *cable) cut(off bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.off = off
	if off {
		for _, conn := range c.conns {
			conn.Close()
		}
		c.conns = nil
	}
}

// A process that is cut off loses its partitions to the others once its claim has expired.
// It comes back.
func TestCutOff(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		c := Config{Claim: 10 * time.Second, Partitions: 16}
		var wire cable
		a := (&testServer{s.Server, wire.wrap}).open(t, c)
		defer a.Close()
		b := s.open(t, c)
		defer b.Close()
		const n = 40
		for i := range n {
			if _, err := b.Put(t.Context(), deliveries(fmt.Sprint("d", i), 0, 1)...); err != nil {
				t.Fatal(err)
			}
		}
		var held []webhook.Delivery
		until(t, "a owns something", func() bool {
			var err error
			held, _, err = a.Lease(t.Context(), webhook.LeaseRequest{Max: n, Until: time.Now().Add(time.Hour)}, nil)
			return err == nil && len(held) > 0
		})
		a.mu.Lock()
		steady := a.steady
		a.mu.Unlock()
		wire.cut(true)
		buried := make(chan error, 1)
		go func() {
			buried <- a.Settle(t.Context(), webhook.Settlement{Verdict: webhook.Bury, Delivery: held[0], Reason: webhook.ReasonExpired, At: time.Now()})
		}()
		began := time.Now()
		var got []webhook.Delivery
		until(t, "b has all", func() bool {
			var err error
			if got, _, err = b.Lease(t.Context(), webhook.LeaseRequest{Max: n, Until: time.Now().Add(time.Hour)}, got); err != nil {
				t.Fatal(err)
			}
			return len(got) == n
		})
		t.Logf("taken over in %v", time.Since(began))
		if _, _, err := a.Lease(t.Context(), webhook.LeaseRequest{Max: 1, Until: time.Now().Add(time.Hour)}, nil); err == nil {
			t.Error("a leases though its claim has expired")
		}
		if err := a.Settle(t.Context(), webhook.Settlement{Verdict: webhook.Done, Delivery: held[0]}); err == nil {
			t.Error("a settles though its claim has expired")
		}
		if err := <-buried; err == nil {
			t.Error("a buries though it is cut off")
		}
		wire.cut(false)
		for i := range got {
			if err := b.Settle(t.Context(), webhook.Settlement{Verdict: webhook.Done, Delivery: got[i]}); err != nil {
				t.Fatal(err)
			}
		}
		until(t, "a is back", func() bool {
			counts, err := a.Count(t.Context())
			a.mu.Lock()
			defer a.mu.Unlock()
			return err == nil && counts.Waiting == 0 && !a.steady.Equal(steady) // it has missed a heartbeat
		})
		for dead, err := range a.Dead(t.Context(), webhook.DeadFilter{}, "") {
			t.Errorf("%s was buried late: %v", dead.Destination, err)
		}
	})
}

// Settlements of a process that does not know yet that another owns the partition do not
// count.
func TestLate(t *testing.T) {
	s := serve(t) // in no bubble: a goroutine that waits for ruling would have its time stand still
	c := Config{Partitions: 1}
	open := func() *Queue {
		t.Helper()
		q := s.open(t, c)
		q.ruling.Lock() // the test decides who owns which partition
		return q
	}
	a := open()
	if _, err := a.Put(t.Context(), append(deliveries("x", 0, 1), deliveries("y", 0, 1)...)...); err != nil {
		t.Fatal(err)
	}
	late, _, err := a.Lease(t.Context(), webhook.LeaseRequest{Max: 2, Until: time.Now().Add(time.Hour)}, nil)
	if err != nil || len(late) != 2 {
		t.Fatalf("Lease = %d, %v", len(late), err)
	}
	a.owned[0].end() // it reads no more
	b := open()
	seize(t, b, 0)
	got, _, err := b.Lease(t.Context(), webhook.LeaseRequest{Max: 2, Until: time.Now().Add(time.Hour)}, nil)
	if err != nil || len(got) != 2 {
		t.Fatalf("Lease of what was taken over = %d, %v", len(got), err)
	}
	again := late[1]
	again.Tries = 1
	if err := a.Settle(t.Context(), webhook.Settlement{Verdict: webhook.Done, Delivery: late[0]}, webhook.Settlement{Verdict: webhook.Retry, Delivery: again}); err != nil {
		t.Fatal(err)
	}
	check := func(q *Queue, leased int) {
		t.Helper()
		// Once a later message has been seen, all earlier ones have.
		if n, err := q.Put(t.Context(), deliveries("z", int(time.Now().UnixNano()), 1)...); n != 1 || err != nil {
			t.Fatal(err)
		}
		testkit.Until(t, "the messages are seen", func() bool {
			q.mu.Lock()
			defer q.mu.Unlock()
			return len(q.owned[0].early) == 0
		})
		q.mu.Lock()
		defer q.mu.Unlock()
		for _, it := range q.owned[0].held {
			if it.Tries != 0 {
				t.Errorf("%s was put back by one who was too late", it.Lane().Name)
			}
		}
		if n := q.owned[0].leases(); n != leased {
			t.Errorf("%d are leased, want %d", n, leased)
		}
	}
	check(b, 2)
	// The next owner decides the same.
	b.owned[0].end()
	d := open()
	seize(t, d, 0)
	check(d, 0)
	all, _, err := d.Lease(t.Context(), webhook.LeaseRequest{Max: 10, Until: time.Now().Add(time.Hour)}, nil)
	if err != nil || len(all) != 4 {
		t.Errorf("Lease of what was taken over again = %v, %v; want x, y and two z", all, err)
	}
	for _, q := range []*Queue{a, b, d} {
		q.ruling.Unlock()
		if err := q.Close(); err != nil {
			t.Error(err)
		}
	}
}

// seize makes q the owner of a partition, whoever owns it.
func seize(t *testing.T, q *Queue, n int) {
	t.Helper()
	holdings, err := q.holdings(t.Context())
	if err == nil {
		err = q.claim(t.Context(), n, holdings[n])
	}
	if err != nil {
		t.Fatal(err)
	}
	<-q.owned[n].ready
}

// A process whose heartbeat comes too late hands out nothing from partitions that others
// have taken over, though it has not heard of that. It keeps the others.
func TestLateSign(t *testing.T) {
	s := serve(t) // in no bubble: a goroutine that waits for ruling would have its time stand still
	c := Config{Partitions: 2}
	a := s.open(t, c)
	defer a.Close()
	a.ruling.Lock() // the test decides who owns which partition
	defer a.ruling.Unlock()
	var names [2]string // of a destination of each partition
	for i := 0; names[0] == "" || names[1] == ""; i++ {
		name := fmt.Sprint("d", i)
		names[partitionOf(name, 2)] = name
	}
	for _, name := range names {
		if n, err := a.Put(t.Context(), deliveries(name, 0, 1)...); n != 1 || err != nil {
			t.Fatalf("Put = %d, %v", n, err)
		}
	}
	a.owned[0].end() // it reads no more
	b := s.open(t, c)
	defer b.Close()
	b.ruling.Lock()
	defer b.ruling.Unlock()
	seize(t, b, 0)
	a.mu.Lock()
	a.until = time.Now().Add(-time.Second)
	a.mu.Unlock()
	if err := a.beat(t.Context()); err != nil {
		t.Fatal(err)
	}
	ds, _, err := a.Lease(t.Context(), webhook.LeaseRequest{Max: 10, Until: time.Now().Add(time.Hour)}, nil)
	if err != nil || len(ds) != 1 || ds[0].Destination != names[1] {
		t.Errorf("Lease after a late heartbeat = %v, %v; want that of %s alone", ds, err, names[1])
	}
	ds, _, err = b.Lease(t.Context(), webhook.LeaseRequest{Max: 10, Until: time.Now().Add(time.Hour)}, nil)
	if err != nil || len(ds) != 1 || ds[0].Destination != names[0] {
		t.Errorf("Lease of who took over = %v, %v; want that of %s alone", ds, err, names[0])
	}
}

// A process that has missed a heartbeat of late takes no other for dead: the servers may
// have been away, for the others too.
func TestSilentJudgesNobody(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		c := Config{Claim: 10 * time.Second, Partitions: 1}
		a, b := s.open(t, c), s.open(t, c)
		defer a.Close()
		defer b.Close()
		a.abandon()
		b.abandon()
		a.mu.Lock()
		a.steady = time.Now().Add(-time.Hour)
		a.mu.Unlock()
		sign := func() { // stores a heartbeat of a, whose answer is lost
			t.Helper()
			if err := a.publisher.store(t.Context(), &message{subject: a.config.nodes() + "." + a.id, data: []byte("{}")}); err != nil {
				t.Fatal(err)
			}
		}
		seen := func() map[string]time.Time {
			t.Helper()
			stream, err := a.js.Stream(t.Context(), a.config.nodes())
			if err != nil {
				t.Fatal(err)
			}
			at := make(map[string]time.Time)
			for _, q := range []*Queue{a, b} {
				m, err := stream.GetLastMsgForSubject(t.Context(), a.config.nodes()+"."+q.id)
				if err != nil {
					t.Fatal(err)
				}
				at[q.id] = m.Time
			}
			return at
		}
		until(t, "b has been silent for long, and a's own claim has expired", func() bool {
			sign()
			at := seen()
			return at[a.id].Sub(at[b.id]) > c.Claim && a.lapsed() // a's last heartbeat may be later than b's
		})
		judges := func() bool {
			t.Helper()
			nodes, err := a.nodes(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return len(nodes) == 1
		}
		if judges() {
			t.Error("b is taken for dead by a process whose own heartbeats were not stored")
		}
		if err := a.beat(t.Context()); err != nil {
			t.Fatal(err)
		}
		if judges() {
			t.Error("b is taken for dead by a process that has just missed one")
		}
		// It has missed one, and its claim has not expired.
		a.mu.Lock()
		a.steady = time.Now().Add(-time.Hour)
		a.until = time.Now().Add(c.trusted() - c.Claim*8/10)
		a.mu.Unlock()
		if err := a.beat(t.Context()); err != nil {
			t.Fatal(err)
		}
		if judges() {
			t.Error("b is taken for dead by a process that has missed one")
		}
		until(t, "b is taken for dead by a process that has missed none", func() bool {
			a.mu.Lock()
			a.steady = time.Now().Add(-time.Hour)
			a.mu.Unlock()
			if err := a.beat(t.Context()); err != nil {
				t.Fatal(err)
			}
			return judges()
		})
	})
}
