//go:build unix

package pgqueue

import (
	"context"
	"flag"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hookferry/analytics/audience"
	"github.com/hookferry/analytics/audience/rostertest"
	"github.com/hookferry/analytics/internal/pgtest"
	"github.com/hookferry/analytics/internal/soakenv"
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/tenants/tenantstest"
	"github.com/hookferry/analytics/webhook/internal/bench"
	"github.com/hookferry/analytics/webhook/queuetest"
	"github.com/hookferry/analytics/webhook/store"
)

var with = flag.String("postgres", "", "settings of the server, as in \"shared_buffers=16MB wal_level=minimal\"")

// server is the server of all tests. It is nil if PostgreSQL is not installed.
var server *pgtest.Server

func TestMain(m *testing.M) {
	bench.Main()
	flag.Parse()
	os.Exit(func() int {
		var settings []string
		if flag.Lookup("test.bench").Value.String() == "" {
			settings = []string{"fsync=off"} // no test simulates a power cut
		}
		var err error
		server, err = pgtest.Start(append(settings, strings.Fields(*with)...)...)
		switch {
		case err == pgtest.ErrMissing:
			flag.Set("test.skip", "^Example[_C]") // an example cannot skip itself
		case err != nil:
			fmt.Fprintln(os.Stderr, err)
			return 1
		default:
			os.Setenv("DATABASE_URL", server.URL()) // for the examples
			defer func() {
				if err := server.Close(); err != nil {
					fmt.Fprintln(os.Stderr, err)
				}
			}()
		}
		return m.Run()
	}())
}

var missing sync.Once

// address returns the URL of the server. It skips the test if PostgreSQL is not installed. The
// first skipped test says why.
func address(t testing.TB) string {
	t.Helper()
	if server == nil {
		missing.Do(func() { testkit.Missing(t, pgtest.ErrMissing.Error()) })
		t.SkipNow()
	}
	return server.URL()
}

// pool returns a pool that the end of the test closes.
func pool(t testing.TB) *pgxpool.Pool {
	t.Helper()
	p, err := pgxpool.New(context.Background(), address(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// schemaOf returns the name of the schema that a test uses in place of the folder dir.
func schemaOf(dir string) string {
	h := fnv.New64a()
	h.Write([]byte(dir))
	return fmt.Sprintf("t%x", h.Sum64())
}

// openWith opens a store. Claim and Poll are an hour unless c sets them, so that no test depends
// on how busy the machine is.
func openWith(t testing.TB, c Config) *Store {
	t.Helper()
	if c.Claim == 0 {
		c.Claim = time.Hour
	}
	if c.Poll == 0 {
		c.Poll = time.Hour
	}
	return openOn(t, pool(t), c)
}

func openOn(t testing.TB, p *pgxpool.Pool, c Config) *Store {
	t.Helper()
	if c.Logger == nil {
		c.Logger = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	q, err := Open(context.Background(), p, c)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// abandon ends the heartbeats of s, as if its process had died.
func (s *Store) abandon() {
	s.stop()
	s.goroutines.Wait()
}

// beatNow sends a heartbeat.
func (s *Store) beatNow(ctx context.Context) error { return s.heartbeat.beat(ctx, s.memory.nodeNow()) }

// traits tell queuetest what this store can do.
var traits = queuetest.Traits{
	Durable: true, Share: true,
	Abandon: func(t testing.TB, s store.Store) { s.(*Store).abandon() },
}

func TestStore(t *testing.T) {
	testVirtual(t, address(t), pgx.QueryExecModeCacheStatement)
}

// TestStoreInRealTime runs the same suite in real time, with notifications.
func TestStoreInRealTime(t *testing.T) {
	soakenv.Only(t, "postgres-queue")
	queuetest.Run(t, func(t testing.TB, dir string) store.Store {
		return openWith(t, Config{Schema: schemaOf(dir), Claim: 10 * time.Second, Poll: time.Second})
	}, traits)
}

func TestRoster(t *testing.T) {
	rostertest.Run(t, func(t testing.TB, dir string) rostertest.Store {
		s := openWith(t, Config{Schema: schemaOf(dir), Claim: 10 * time.Second, Poll: time.Second})
		return struct {
			audience.Roster
			io.Closer
		}{NewRoster(s), s}
	}, rostertest.Traits{Durable: true, Share: true})
}

func TestTenants(t *testing.T) {
	schema := schemaOf(t.TempDir())
	a, b := openWith(t, Config{Schema: schema}), openWith(t, Config{Schema: schema})
	defer a.Close()
	defer b.Close()
	tenantstest.Run(t, false, func(testing.TB) (store.DocumentStore, store.DocumentStore) { return a, b })
}
