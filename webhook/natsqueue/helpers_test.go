package natsqueue

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

func deliveries(destination string, from, n int) []store.Delivery {
	now := time.Now().Add(-time.Second)
	ds := make([]store.Delivery, n)
	for i := range ds {
		id := fmt.Sprint(from + i)
		ds[i] = store.Delivery{Destination: destination, ID: id, Type: "track", Body: []byte(id), Accepted: now, Due: now}
	}
	return ds
}

// tryPut puts ds and returns how many were stored.
func (s *Store) tryPut(ctx context.Context, ds ...store.Delivery) (n int, err error) {
	ps, out := make([]store.Put, len(ds)), make([]store.Result, len(ds))
	for i := range ds {
		ps[i].Delivery = ds[i]
	}
	if err := s.Put(ctx, ps, out); err != nil {
		return 0, err
	}
	for _, r := range out {
		if r.Stored {
			n++
		}
	}
	return n, nil
}

func mustPut(t testing.TB, s *Store, ds ...store.Delivery) {
	t.Helper()
	if n, err := s.tryPut(t.Context(), ds...); n != len(ds) || err != nil {
		t.Fatalf("Put = %d, %v; want %d", n, err, len(ds))
	}
}

// tryFetch fetches up to n of each queue of the destinations.
func (s *Store) tryFetch(ctx context.Context, n int, destinations ...string) ([]store.Delivery, error) {
	var wants []store.Want
	for _, name := range destinations {
		wants = append(wants, store.Want{Destination: name, Max: n}, store.Want{Destination: name, Retries: true, Max: n})
	}
	return s.Fetch(ctx, wants, 1<<40, nil)
}

// fetch fetches all due deliveries. It fails the test unless their number is want.
func fetch(t testing.TB, s *Store, want int, destinations ...string) []store.Delivery {
	t.Helper()
	ds, err := s.tryFetch(t.Context(), want+10, destinations...)
	if err != nil || len(ds) != want {
		t.Fatalf("Fetch = %d, %v; want %d", len(ds), err, want)
	}
	return ds
}

func settlements(verdict store.Verdict, ds ...store.Delivery) (ss []store.Settlement) {
	for _, d := range ds {
		ss = append(ss, store.Settlement{Verdict: verdict, Delivery: d, Reason: store.ReasonExpired, At: time.Now()})
	}
	return ss
}

func settle(t testing.TB, s *Store, verdict store.Verdict, ds ...store.Delivery) {
	t.Helper()
	if n, err := s.Settle(t.Context(), settlements(verdict, ds...)); n != len(ds) || err != nil {
		t.Fatalf("Settle = %d, %v; want %d", n, err, len(ds))
	}
}

// list returns all deliveries that a query selects.
func list(t testing.TB, s *Store, q store.Query) (all []store.Record) {
	t.Helper()
	for after := uint64(0); ; {
		page, next, err := s.List(t.Context(), q, after, 100)
		if err != nil {
			t.Fatal(err)
		}
		if all = append(all, page...); next == 0 {
			return all
		}
		after = next
	}
}

// partitionOf returns partition 0 of s, or nil if s does not own it.
func partitionOf(s *Store) *partition {
	s.index.mu.Lock()
	defer s.index.mu.Unlock()
	return s.partitions.owned[0]
}

// A deafConn drops the bytes that the client sends while deaf is true, so no answer comes.
type deafConn struct {
	net.Conn
	deaf *atomic.Bool
}

func (c deafConn) Write(b []byte) (int, error) {
	if c.deaf.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// A heldConn holds back what the server sends while held is true.
type heldConn struct {
	net.Conn
	held *atomic.Bool
}

func (c heldConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	for c.held.Load() {
		time.Sleep(10 * time.Millisecond) // of the bubble's time
	}
	return n, err
}

// A cable holds the connections to a server. While it is cut off, all connections are closed, and
// new ones fail.
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
