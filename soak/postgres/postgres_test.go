//go:build unix

// Package postgres has the soaks of webhook/pgqueue that use only its exported names.
package postgres

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hookferry/analytics/internal/pgtest"
	"github.com/hookferry/analytics/internal/soakenv"
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/soak/chaos"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/pgqueue"
)

var store = chaos.Store{Open: open, Lost: "this node was silent for too long"}

func TestMain(m *testing.M) {
	chaos.Main(store)
	os.Exit(m.Run())
}

// open opens a store. address is its Claim, a space, and the URL of the database.
func open(ctx context.Context, address string, log *slog.Logger) (webhook.Store, func(), error) {
	claim, url, _ := strings.Cut(address, " ")
	c, err := time.ParseDuration(claim)
	if err != nil {
		return nil, nil, err
	}
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return nil, nil, err
	}
	q, err := pgqueue.Open(ctx, pool, pgqueue.Config{Schema: "chaos", Claim: c, Poll: 500 * time.Millisecond, Logger: log})
	if err != nil {
		pool.Close()
		return nil, nil, err
	}
	return q, pool.Close, nil
}

// TestChaos kills processes that share a store, and restarts the database.
func TestChaos(t *testing.T) {
	length, seed := soakenv.Long(t, "postgres-chaos")
	db := pgtest.New(t, "fsync=off")
	chaos.Run(t, store, []string{"3s " + db.URL()}, length, seed, func(d time.Duration) {
		if err := db.Down(); err != nil {
			t.Fatal(err)
		}
		pause(t, d)
		if err := db.Up(); err != nil {
			t.Fatal(err)
		}
	})
}

// All processes of the database are frozen for a while, or a table is locked, while a backlog is
// delivered. No node declares another one dead that is alive.
func TestFrozen(t *testing.T) {
	length, seed := soakenv.Long(t, "postgres-frozen")
	r := rand.New(rand.NewPCG(seed, 1))
	db := pgtest.New(t, "fsync=off")
	pool, err := pgxpool.New(t.Context(), db.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	nodes := func() (ids []int64) {
		rows, _ := pool.Query(t.Context(), "SELECT id FROM chaos.node ORDER BY id")
		ids, _ = pgx.CollectRows(rows, pgx.RowTo[int64]) // none before the table exists
		return ids
	}
	freeze := func(d time.Duration) {
		defer func() {
			if err := db.Thaw(); err != nil {
				t.Error(err)
			}
		}()
		if err := db.Freeze(); err != nil {
			t.Fatal(err)
		}
		pause(t, d)
	}
	lock := func(table string) func(time.Duration) {
		return func(d time.Duration) {
			tx, err := pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback(context.Background())
			if _, err := tx.Exec(t.Context(), "LOCK TABLE chaos."+table+" IN ACCESS EXCLUSIVE MODE"); err != nil {
				t.Fatal(err)
			}
			pause(t, d)
		}
	}
	const claim = pgqueue.DefaultClaim
	chaos.Survive(t, store, claim.String()+" "+db.URL(), seed, 100*time.Millisecond, func() {
		testkit.Until(t, "three nodes have started", func() bool { return len(nodes()) == 3 })
		before := nodes()
		// A node with a recent late heartbeat declares no other node dead. So let the heartbeats be
		// on time for a while before each step, or the test would check nothing.
		steady := func() { pause(t, claim+time.Duration(r.Int64N(int64(claim)/2))) }
		type step struct {
			take func(time.Duration)
			d    time.Duration
		}
		steps := []step{{freeze, claim - time.Second}, {freeze, claim + 2*time.Second}, {freeze, 6 * claim}}
		for _, table := range []string{"node", "chunk", "dedup", "state", "dead", "document"} {
			steps = append(steps, step{lock(table), 2 * claim})
		}
		end := time.Now().Add(length)
		for i := 0; i < len(steps) || time.Now().Before(end); i++ {
			steady()
			steps[i%len(steps)].take(steps[i%len(steps)].d)
		}
		steady()
		if diff := cmp.Diff(before, nodes()); diff != "" {
			t.Errorf("the ids of the nodes have changed, want that no live node is declared dead (-before +after):\n%s", diff)
		}
	})
}

// Nodes are suspended for twice Claim, one after the other. The others take over their claims, and
// only what a suspended node had in flight is delivered twice.
func TestSuspended(t *testing.T) {
	length, seed := soakenv.Long(t, "postgres-suspended")
	db := pgtest.New(t, "fsync=off")
	const claim = pgqueue.DefaultClaim
	chaos.Suspend(t, store, claim.String()+" "+db.URL(), length, seed, 100*time.Millisecond, 2*claim)
}

// pause waits for d, or until the test ends.
func pause(t *testing.T, d time.Duration) {
	select {
	case <-time.After(d):
	case <-t.Context().Done():
	}
}

// dialing opens a store. dial wraps each of its connections to the database.
func dialing(t *testing.T, db *pgtest.Server, c pgqueue.Config, dial func(net.Conn) net.Conn) (q *pgqueue.Store, end func()) {
	t.Helper()
	pc, err := pgxpool.ParseConfig(db.URL())
	if err != nil {
		t.Fatal(err)
	}
	pc.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return dial(conn), nil
	}
	p, err := pgxpool.NewWithConfig(t.Context(), pc)
	if err != nil {
		t.Fatal(err)
	}
	if q, err = pgqueue.Open(t.Context(), p, c); err != nil {
		t.Fatal(err)
	}
	return q, p.Close
}

// TestCut cuts connections at random, so that answers of the server are lost. Each accepted
// delivery still ends once.
func TestCut(t *testing.T) {
	length, seed := soakenv.Long(t, "postgres-cut")
	db := pgtest.New(t, "fsync=off")
	c := &chaos.Cutter{Least: 500, Most: 4500}
	chaos.Cut(t, c, length, seed, func() (webhook.Store, func()) {
		return dialing(t, db, pgqueue.Config{Claim: 5 * time.Second, Poll: 200 * time.Millisecond}, c.Conn)
	})
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

// Close gives up after about Claim if the network to the database hangs.
func TestHang(t *testing.T) {
	length, _ := soakenv.Long(t, "postgres-hang")
	db := pgtest.New(t, "fsync=off")
	const claim = 3 * time.Second
	for over := time.Now().Add(length); ; {
		var deaf atomic.Bool
		q, end := dialing(t, db, pgqueue.Config{Claim: claim}, func(conn net.Conn) net.Conn { return deafConn{conn, &deaf} })
		deaf.Store(true)
		began := time.Now()
		if err := q.Close(); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Close = %v, want context.DeadlineExceeded", err)
		}
		if took := time.Since(began); took > 2*claim {
			t.Errorf("Close took %v, want at most %v", took, 2*claim)
		}
		end()
		if time.Now().After(over) {
			break
		}
	}
}
