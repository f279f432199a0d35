package natsqueue

import (
	"context"
	"flag"
	"fmt"
	"hash/fnv"
	"log/slog"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/internal/bench"
	"github.com/hookferry/analytics/webhook/internal/chaos"
	"github.com/hookferry/analytics/webhook/queuetest"
)

// shared is the server of all tests that need no other.
var shared *testServer

func TestMain(m *testing.M) {
	bench.Main()
	chaos.Main(openChaos)
	mainServer()
	flag.Parse()
	os.Exit(func() int {
		var err error
		if shared, err = startServer(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		os.Setenv("NATS_URL", shared.url()) // of the examples
		code := m.Run()
		err = shared.close()
		if err == nil {
			// A server of a cluster that is stopped while it takes up a stream may leave these.
			const server = "github.com/nats-io/nats-server/v2/server"
			leak := func() error {
				return goleak.Find(goleak.IgnoreTopFunction(server+".(*fileStore).flushStreamStateLoop"), goleak.IgnoreTopFunction(server+"/ats.Register.func1"))
			}
			// Others end in their own time, of which Find waits for half a second.
			for end := time.Now().Add(startTime); ; {
				if err = leak(); err == nil || time.Now().After(end) {
					break
				}
			}
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
		return code
	}())
}

// connect returns a connection that the end of the test closes.
func connect(t testing.TB, url string) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// nameOf is the stream that a folder of queuetest stands for.
func nameOf(dir string) string {
	h := fnv.New64a()
	h.Write([]byte(dir))
	return fmt.Sprintf("T%X", h.Sum64())
}

func open(t testing.TB, dir string) webhook.Queue {
	t.Helper()
	return ready(openWith(t, Config{Stream: nameOf(dir), Claim: busyClaim, Partitions: 16}))
}

// ready waits until q knows what waits in the partitions that it owns. Open does so for a second,
// in which a machine that is busy may not have come to it.
func ready(q *Queue) *Queue {
	q.mu.Lock()
	owned := slices.Clone(q.owned)
	q.mu.Unlock()
	for _, p := range owned {
		if p != nil {
			<-p.ready
		}
	}
	return q
}

func openWith(t testing.TB, c Config) *Queue {
	t.Helper()
	return openAt(t, shared.url(), c)
}

func openAt(t testing.TB, url string, c Config) *Queue {
	t.Helper()
	if c.Logger == nil {
		c.Logger = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	q, err := Open(context.Background(), connect(t, url), &c)
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
		OpenFull: func(t testing.TB, dir string) webhook.Queue {
			return ready(openWith(t, Config{Stream: nameOf(dir), Claim: busyClaim, Partitions: 4, MaxBytes: 8 << 20}))
		},
		Abandon: func(t testing.TB, q webhook.Queue) { q.(*Queue).abandon() },
	})
}

// seesAll reports whether everything that was put has been read back.
func (q *Queue) seesAll() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, p := range q.owned {
		if p != nil && len(p.early) > 0 {
			return false
		}
	}
	return true
}
