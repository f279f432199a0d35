//go:build unix

package postgres

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hookferry/analytics/internal/pgtest"
	"github.com/hookferry/analytics/internal/soakenv"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/pgqueue"
	keep "github.com/hookferry/analytics/webhook/store"
)

// putOne puts a delivery, and gives up after three seconds.
func putOne(t *testing.T, q *pgqueue.Store, id int) error {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	d := webhook.Delivery{Destination: "crm", ID: fmt.Sprint(id), Body: []byte("{}"), Due: q.Now()}
	return q.Put(ctx, []keep.Put{{Delivery: d}}, make([]keep.Result, 1))
}

// TestFailover ends a server and promotes its standby, while a store has both as hosts. The store
// goes on with the standby within seconds, also if the old server comes back read-only. No stored
// delivery is lost.
func TestFailover(t *testing.T) {
	soakenv.Long(t, "postgres-failover")
	a := pgtest.New(t, "fsync=off")
	b := a.Standby(t)
	for _, sql := range []string{"ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()"} {
		if _, err := poolOf(t, a).Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	pool, err := pgxpool.New(t.Context(), fmt.Sprintf("host=%s,%s user=test dbname=postgres target_session_attrs=read-write", a.Dir(), b.Dir()))
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	q, err := pgqueue.Open(t.Context(), pool, pgqueue.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	stored := 0
	for id := range 100 {
		if err := putOne(t, q, id); err != nil {
			t.Fatal(err)
		}
		stored++
	}
	if err := a.Down(); err != nil {
		t.Fatal(err)
	}
	if err := b.Promote(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for id := 100; ; id++ {
		if err = putOne(t, q, id); err == nil && q.Ready() == nil {
			break
		}
		if time.Since(began) > time.Minute {
			t.Fatalf("a minute after the failover: Put = %v, Ready = %v", err, q.Ready())
		}
		pause(t, 200*time.Millisecond)
	}
	t.Logf("the store works %v after the failover", time.Since(began).Round(time.Millisecond))
	if err := a.Up(); err != nil { // so that New can close it
		t.Error(err)
	}
	if c, err := q.Count(t.Context()); err != nil || c.Waiting < stored {
		t.Errorf("Count = %+v, %v; want at least the %d stored deliveries", c, err, stored)
	}
}

func poolOf(t *testing.T, s *pgtest.Server) *pgxpool.Pool {
	t.Helper()
	p, err := pgxpool.New(t.Context(), s.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// A silentConn gets nothing from the server once silent is true, as if the network had dropped the
// connection. The connection that listens stores itself in listener.
type silentConn struct {
	net.Conn
	silent   *atomic.Bool
	listener *atomic.Pointer[silentConn]
}

func (c silentConn) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("LISTEN ")) {
		c.listener.Store(&c)
	}
	return c.Conn.Write(b)
}

func (c silentConn) Read(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b)
		if err != nil || !c.silent.Load() {
			return n, err
		}
	}
}

// TestHalfOpen makes the connection that listens look open while it gets nothing. Within half a
// minute a new one takes its place: what another node puts is news at once, long before Poll.
func TestHalfOpen(t *testing.T) {
	soakenv.Long(t, "postgres-half-open")
	db := pgtest.New(t, "fsync=off")
	c := pgqueue.Config{Poll: time.Hour, Claim: time.Hour}
	var listener atomic.Pointer[silentConn]
	q, end := dialing(t, db, c, func(conn net.Conn) net.Conn { return silentConn{conn, new(atomic.Bool), &listener} })
	defer end()
	defer q.Close()
	other, err := pgqueue.Open(t.Context(), poolOf(t, db), c)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	id := 0
	// news reports whether q hears at once of a delivery that another node puts.
	news := func() bool {
		pause(t, time.Second)
		select {
		case <-q.Changed():
		default:
		}
		if id++; putOne(t, other, id) != nil {
			t.Fatal("the other node cannot put")
		}
		select {
		case <-q.Changed():
			return true
		case <-time.After(2 * time.Second):
			return false
		}
	}
	if !news() {
		t.Fatal("a connection that listens gets no notification")
	}
	listener.Load().silent.Store(true)
	if news() {
		t.Fatal("a silent connection gets a notification")
	}
	pause(t, 30*time.Second)
	if !news() {
		t.Error("half a minute later, no other connection gets notifications")
	}
}
