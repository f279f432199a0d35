package natsqueue

import (
	"flag"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"testing"
	"time"

	"github.com/hookferry/analytics/audience"
	"github.com/hookferry/analytics/audience/rostertest"
	"github.com/hookferry/analytics/internal/soakenv"
	"github.com/hookferry/analytics/tenants/tenantstest"
	"github.com/hookferry/analytics/webhook/internal/bench"
	"github.com/hookferry/analytics/webhook/queuetest"
	"github.com/hookferry/analytics/webhook/store"
)

func TestMain(m *testing.M) {
	bench.Main()
	mainServer()
	flag.Parse()
	began()
	code := 1
	if err := withServer(func(url string) {
		os.Setenv("NATS_URL", url) // for the examples, and for tests in real time
		code = m.Run()
	}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// traits tell queuetest what this store can do.
var traits = queuetest.Traits{
	Durable: true, Share: true,
	Abandon: func(t testing.TB, s store.Store) { s.(*Store).abandon() },
}

func TestStore(t *testing.T) {
	servers := make(map[string]*testServer) // by folder
	open := func(t testing.TB, dir string, c Config) store.Store {
		t.Helper()
		if servers[dir] == nil {
			servers[dir] = serve(t)
		}
		c.Claim, c.DedupWindow = time.Minute, 24*time.Hour
		return ready(servers[dir].open(t, c))
	}
	traits := traits
	traits.Bubble = true
	traits.OpenFull = func(t testing.TB, dir string) store.Store {
		return open(t, dir, Config{Partitions: 4, MaxBytes: 8 << 20})
	}
	queuetest.Run(t, func(t testing.TB, dir string) store.Store { return open(t, dir, Config{Partitions: 16}) }, traits)
}

// TestStoreInRealTime is TestStore in real time, over sockets.
func TestStoreInRealTime(t *testing.T) {
	soakenv.Only(t, "nats-queue")
	queuetest.Run(t, func(t testing.TB, dir string) store.Store {
		return ready(openOn(t, connect(t, os.Getenv("NATS_URL")), Config{Stream: nameOf(dir), Claim: 10 * time.Second, Partitions: 16}))
	}, traits)
}

// nameOf returns the name of the stream that a test uses in place of the folder dir.
func nameOf(dir string) string {
	h := fnv.New64a()
	h.Write([]byte(dir))
	return fmt.Sprintf("T%X", h.Sum64())
}

func TestRoster(t *testing.T) {
	servers := make(map[string]*testServer) // by folder
	rostertest.Run(t, func(t testing.TB, dir string) rostertest.Store {
		if servers[dir] == nil {
			servers[dir] = serve(t)
		}
		s := ready(servers[dir].open(t, Config{Partitions: 4, Claim: time.Minute, DedupWindow: 24 * time.Hour}))
		return struct {
			audience.Roster
			io.Closer
		}{NewRoster(s), s}
	}, rostertest.Traits{Durable: true, Bubble: true, Share: true})
}

func TestTenants(t *testing.T) {
	server := serve(t)
	a, b := server.open(t, Config{Partitions: 4}), server.open(t, Config{Partitions: 4})
	defer a.Close()
	defer b.Close()
	tenantstest.Run(t, false, func(testing.TB) (store.DocumentStore, store.DocumentStore) { return a, b })
}
