//go:build unix

package postgres

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/internal/pgtest"
	"github.com/hookferry/analytics/internal/soakenv"
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/pgqueue"
)

// A neighbour disturbs the database until ctx ends.
type neighbour struct {
	name    string
	disturb func(ctx context.Context, h *house) error
}

var neighbours = []neighbour{
	{"none", func(ctx context.Context, _ *house) error { <-ctx.Done(); return nil }},
	{"an idle transaction holds xmin", func(ctx context.Context, h *house) error {
		return pgx.BeginTxFunc(context.WithoutCancel(ctx), h.other, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
			_, err := tx.Exec(context.WithoutCancel(ctx), "SELECT txid_current()")
			<-ctx.Done()
			return err
		})
	}},
	{"three overlapping readers", func(ctx context.Context, h *house) error {
		var wg sync.WaitGroup
		for i := range 3 {
			wg.Go(func() {
				sleep(ctx, time.Duration(i)*time.Second)
				for ctx.Err() == nil {
					h.other.Exec(ctx, "SELECT sum(octet_length(items)), count(DISTINCT destination), pg_sleep(3) FROM hookferry.chunk")
				}
			})
		}
		wg.Wait()
		return nil
	}},
	{"pg_dump in a loop", func(ctx context.Context, h *house) error {
		for ctx.Err() == nil {
			cmd := exec.CommandContext(ctx, program("pg_dump"), "-f", "/dev/null", h.db.URL())
			if out, err := cmd.CombinedOutput(); err != nil && ctx.Err() == nil {
				return fmt.Errorf("pg_dump: %w: %s", err, out)
			}
		}
		return nil
	}},
	{"all backends are terminated every 10 s", func(ctx context.Context, h *house) error {
		for ctx.Err() == nil {
			if _, err := h.other.Exec(ctx, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"); err != nil && ctx.Err() == nil {
				return err
			}
			sleep(ctx, 10*time.Second)
		}
		return nil
	}},
	{"the pool is exhausted half of the time", func(ctx context.Context, h *house) error {
		for ctx.Err() == nil {
			var held []*pgxpool.Conn
			for range h.pool.Config().MaxConns {
				if c, err := h.pool.Acquire(ctx); err == nil {
					held = append(held, c)
				}
			}
			sleep(ctx, 2*time.Second)
			for _, c := range held {
				c.Release()
			}
			sleep(ctx, 2*time.Second)
		}
		return nil
	}},
	{"restart", func(_ context.Context, h *house) error {
		if err := h.db.Down(); err != nil {
			return err
		}
		return h.db.Up()
	}},
	{"all processes are frozen for 12 s", func(ctx context.Context, h *house) error {
		if err := h.db.Freeze(); err != nil {
			return err
		}
		sleep(context.WithoutCancel(ctx), 12*time.Second)
		return h.db.Thaw()
	}},
	{"each table is locked for 5 s", func(ctx context.Context, h *house) error {
		ctx = context.WithoutCancel(ctx)
		for _, table := range []string{"chunk", "dedup", "state", "node", "dead", "document"} {
			if err := pgx.BeginFunc(ctx, h.other, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, "LOCK TABLE hookferry."+table+" IN ACCESS EXCLUSIVE MODE")
				sleep(ctx, 5*time.Second)
				return err
			}); err != nil {
				return err
			}
		}
		return nil
	}},
}

func program(name string) string {
	if p, err := exec.LookPath(name); err == nil {
		return p
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	return slices.Max(append(found, name))
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// A house is a database that one node, which delivers at full rate, shares with a neighbour.
type house struct {
	db    *pgtest.Server
	pool  *pgxpool.Pool // of the node
	other *pgxpool.Pool // of the neighbour
	store *pgqueue.Store

	delivered []atomic.Int32 // how often each event arrived, by id
	distinct  atomic.Int64   // how many different events arrived
	accepted  atomic.Int64
	largest   int64 // bytes of the tables
}

const (
	mostEvents  = 20_000_000
	maxWaiting  = 20_000 // how many deliveries the load keeps waiting
	eventsACall = 64
)

// Each neighbour disturbs the database for the length of the soak. No accepted event may be lost.
// Each logs a row of the table in BENCHMARKS.md.
func TestNeighbours(t *testing.T) {
	length, _ := soakenv.Long(t, "postgres-neighbours")
	for _, n := range neighbours {
		t.Run(n.name, func(t *testing.T) { live(t, n, length) })
	}
}

func live(t *testing.T, n neighbour, length time.Duration) {
	h := &house{db: pgtest.New(t), delivered: make([]atomic.Int32, mostEvents)}
	connect := func(most int32) *pgxpool.Pool {
		c, err := pgxpool.ParseConfig(h.db.URL())
		if err != nil {
			t.Fatal(err)
		}
		c.MaxConns = most
		p, err := pgxpool.NewWithConfig(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Close)
		return p
	}
	h.pool, h.other = connect(8), connect(4)
	receiver := httptest.NewServer(http.HandlerFunc(h.receive))
	defer receiver.Close()
	var err error
	if h.store, err = pgqueue.Open(t.Context(), h.pool, pgqueue.Config{}); err != nil {
		t.Fatal(err)
	}
	defer h.store.Close()
	c := webhook.Config{Store: h.store, Logger: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))}
	for i := range 10 {
		c.Destinations = append(c.Destinations, webhook.Destination{ID: fmt.Sprint("d", i), Endpoints: []webhook.Endpoint{{URL: receiver.URL}}})
	}
	f, err := webhook.New(c)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- f.Run(context.Background()) }() // ended below
	loading, stop := context.WithCancel(t.Context())
	var load sync.WaitGroup
	var ids atomic.Int64
	for range 4 {
		load.Go(func() { h.load(loading, f, &ids) })
	}

	measure := min(length, 30*time.Second) // in 10 s, the rate varies by a tenth without any neighbour
	h.rate(t, measure)                     // warm up
	before := h.rate(t, measure)
	disturbing, leave := context.WithTimeout(t.Context(), length)
	defer leave()
	gone := make(chan error, 1)
	go func() { gone <- n.disturb(disturbing, h) }() // received below
	first, began := h.distinct.Load(), time.Now()
	if err := <-gone; err != nil {
		t.Errorf("%s: %v", n.name, err)
	}
	during := float64(h.distinct.Load()-first) / time.Since(began).Seconds()
	pause(t, min(length, 30*time.Second))
	after := h.rate(t, measure)
	stop()
	load.Wait()
	testkit.Until(t, "every accepted event has arrived", func() bool {
		pause(t, 100*time.Millisecond)
		return h.distinct.Load() >= h.accepted.Load() && f.Stats().InFlight == 0
	})
	if err := f.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	h.size(t)
	twice := int64(0)
	for i := range h.delivered {
		twice += max(0, int64(h.delivered[i].Load())-1)
	}
	left, err := h.store.Count(t.Context())
	if err != nil || left.Waiting > 0 || left.Dead > 0 {
		t.Errorf("%s: Count = %+v, %v; want 0 waiting, 0 dead", n.name, left, err)
	}
	// The test does not check the rates. On a shared machine they vary more than a neighbour
	// changes them.
	t.Logf("| %s | %.0f | %.0f | %.0f | %d MB | %d of %d | 0 |", n.name, before, during, after, h.largest>>20, twice, h.accepted.Load())
}

// receive counts a delivery.
func (h *house) receive(_ http.ResponseWriter, r *http.Request) {
	var begin [len(`{"id":"0123456789abcdef`)]byte // see load
	_, err := io.ReadFull(r.Body, begin[:])
	io.Copy(io.Discard, r.Body)
	id, failed := strconv.ParseUint(string(begin[len(begin)-16:]), 16, 64)
	if err == nil && failed == nil && h.delivered[id].Add(1) == 1 {
		h.distinct.Add(1)
	}
}

// load forwards events while fewer than maxWaiting wait. It repeats a call that failed, until it
// succeeds.
func (h *house) load(ctx context.Context, f *webhook.Forwarder, ids *atomic.Int64) {
	for ctx.Err() == nil {
		if h.accepted.Load()-h.distinct.Load() > maxWaiting || ids.Load() > mostEvents-10_000 {
			sleep(ctx, time.Millisecond)
			continue
		}
		first := int(ids.Add(eventsACall)) - eventsACall
		events := make([]event.Event, eventsACall)
		for i := range events {
			body := fmt.Appendf(nil, `{"id":"%016x","x":"%s"}`, first+i, strings.Repeat("x", 420))
			events[i] = event.Event{ID: strconv.Itoa(first + i), Type: "track", Body: body, Received: time.Now()}
		}
		for {
			// A failed call may have stored its events. So repeat it even after the end of ctx.
			if err := f.ForwardEvents(context.WithoutCancel(ctx), []string{fmt.Sprint("d", first/eventsACall%10)}, events...); err == nil {
				break
			}
			sleep(context.WithoutCancel(ctx), 10*time.Millisecond)
		}
		h.accepted.Add(eventsACall)
	}
}

// rate returns how many events arrive in a second, measured over d.
func (h *house) rate(t *testing.T, d time.Duration) float64 {
	h.size(t)
	first, began := h.distinct.Load(), time.Now()
	pause(t, d)
	return float64(h.distinct.Load()-first) / time.Since(began).Seconds()
}

// size measures the tables, and keeps the largest size.
func (h *house) size(t *testing.T) {
	var n int64
	if err := h.other.QueryRow(t.Context(), "SELECT coalesce(sum(pg_total_relation_size(relid)), 0) FROM pg_stat_user_tables WHERE schemaname = 'hookferry'").Scan(&n); err == nil {
		h.largest = max(h.largest, n)
	}
}
