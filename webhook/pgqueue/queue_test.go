//go:build unix

package pgqueue

import (
	"context"
	"flag"
	"fmt"
	"hash/fnv"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hookferry/analytics/internal/pgtest"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/internal/bench"
	"github.com/hookferry/analytics/webhook/internal/chaos"
	"github.com/hookferry/analytics/webhook/queuetest"
)

var with = flag.String("postgres", "", "settings of the server, as in \"shared_buffers=16MB wal_level=minimal\"")

// server is that of all tests of the package.
var server *pgtest.Server

func TestMain(m *testing.M) {
	bench.Main()
	chaos.Main(openChaos)
	flag.Parse()
	os.Exit(func() int {
		var err error
		var settings []string
		if flag.Lookup("test.bench").Value.String() == "" {
			settings = []string{"fsync=off"} // no test pulls a plug
		}
		settings = append(settings, strings.Fields(*with)...)
		if server, err = pgtest.Start(settings...); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() {
			if err := server.Close(); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}()
		os.Setenv("DATABASE_URL", server.URL()) // of the examples
		return m.Run()
	}())
}

// pool returns a pool that the end of the test closes.
func pool(t testing.TB) *pgxpool.Pool {
	t.Helper()
	p, err := pgxpool.New(context.Background(), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// schemaOf is the schema that a folder of queuetest stands for.
func schemaOf(dir string) string {
	h := fnv.New64a()
	h.Write([]byte(dir))
	return fmt.Sprintf("t%x", h.Sum64())
}

func open(t testing.TB, dir string) webhook.Queue {
	t.Helper()
	return openWith(t, Config{Schema: schemaOf(dir), Claim: busyClaim, Poll: time.Second})
}

func openWith(t testing.TB, c Config) *Queue {
	t.Helper()
	if c.Logger == nil {
		c.Logger = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	q, err := Open(context.Background(), pool(t), &c)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// abandon ends the signs of life of q.
func (q *Queue) abandon() {
	q.stop()
	q.goroutines.Wait()
}

func TestQueue(t *testing.T) {
	queuetest.Run(t, open, queuetest.Traits{
		Durable: true, Share: true, Lease: time.Second,
		Abandon: func(t testing.TB, q webhook.Queue) { q.(*Queue).abandon() },
	})
}
