//go:build unix

// Package postgres has the soaks of webhook/pgqueue that see its behaviour alone.
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
	"github.com/hookferry/analytics/internal/soak"
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

// open opens the store at an address, which is its Claim and the URL of the database.
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

// Processes are killed, and the database is.
func TestChaos(t *testing.T) {
	length, seed := soak.Long(t, "postgres-chaos")
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

// All processes of the database stand still for a while, or the table of heartbeats is
// locked, under a backlog. No node takes over what another one that is alive has claimed.
func TestFrozen(t *testing.T) {
	length, seed := soak.Long(t, "postgres-frozen")
	r := rand.New(rand.NewPCG(seed, 1))
	db := pgtest.New(t, "fsync=off")
	pool, err := pgxpool.New(t.Context(), db.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	nodes := func() (ids []int64) {
		rows, _ := pool.Query(t.Context(), "SELECT id FROM chaos.node ORDER BY id")
		ids, _ = pgx.CollectRows(rows, pgx.RowTo[int64]) // none while there is no such table yet
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
	lock := func(d time.Duration) {
		tx, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(context.Background())
		if _, err := tx.Exec(t.Context(), "LOCK TABLE chaos.node IN ACCESS EXCLUSIVE MODE"); err != nil {
			t.Fatal(err)
		}
		pause(t, d)
	}
	const claim = pgqueue.DefaultClaim
	chaos.Survive(t, store, claim.String()+" "+db.URL(), seed, 100*time.Millisecond, func() {
		testkit.Until(t, "three nodes are there", func() bool { return len(nodes()) == 3 })
		before := nodes()
		// A node whose heartbeats were late of late takes nobody for dead. So each time they
		// are on time for a while before.
		steady := func() { pause(t, claim+time.Duration(r.Int64N(int64(claim)/2))) }
		for end := time.Now().Add(length); ; {
			for _, step := range []struct {
				take func(time.Duration)
				d    time.Duration
			}{{freeze, claim - time.Second}, {freeze, claim + 2*time.Second}, {lock, claim}} {
				steady()
				step.take(step.d)
			}
			if time.Now().After(end) {
				break
			}
		}
		steady()
		if diff := cmp.Diff(before, nodes()); diff != "" {
			t.Errorf("nodes that were alive have been taken for dead (-before +after):\n%s", diff)
		}
	})
}

func pause(t *testing.T, d time.Duration) {
	select {
	case <-time.After(d):
	case <-t.Context().Done():
	}
}

// dialing opens a store whose connections dial makes of those to the database.
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

// Whatever answer of the server is lost, each delivery that was accepted ends once.
func TestCut(t *testing.T) {
	length, seed := soak.Long(t, "postgres-cut")
	db := pgtest.New(t, "fsync=off")
	c := &chaos.Cutter{Least: 500, Most: 4500}
	chaos.Cut(t, c, length, seed, func() (webhook.Store, func()) {
		return dialing(t, db, pgqueue.Config{Claim: 5 * time.Second, Poll: 200 * time.Millisecond}, c.Conn)
	})
}

// A deafConn drops what is sent while it is deaf, so that no answer comes.
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

// Close does not wait longer than Claim for a network that hangs.
func TestHang(t *testing.T) {
	length, _ := soak.Long(t, "postgres-hang")
	db := pgtest.New(t, "fsync=off")
	const claim = 3 * time.Second
	for over := time.Now().Add(length); ; {
		var deaf atomic.Bool
		q, end := dialing(t, db, pgqueue.Config{Claim: claim}, func(conn net.Conn) net.Conn { return deafConn{conn, &deaf} })
		deaf.Store(true)
		began := time.Now()
		if err := q.Close(); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Close = %v, want that there was no time", err)
		}
		if took := time.Since(began); took > 2*claim {
			t.Errorf("Close took %v", took)
		}
		end()
		if time.Now().After(over) {
			break
		}
	}
}
