package natsqueue

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats-server/v2/server/ats"
	"github.com/nats-io/nats.go"
)

// maxPayload has room for the largest body of queuetest.
const maxPayload = 4 << 20

// A testServer is a server with JetStream. Clients connect to it without a socket, so a synctest
// bubble can contain both. There a test need not wait until a claim expires, and no claim expires
// early on a slow machine.
type testServer struct {
	*server.Server
	options *server.Options
	// wrap wraps the connections of clients, if it is not nil.
	wrap func(net.Conn) (net.Conn, error)
}

// InProcessConn implements nats.InProcessConnProvider.
func (s *testServer) InProcessConn() (net.Conn, error) {
	conn, err := s.Server.InProcessConn()
	if err == nil && s.wrap != nil {
		return s.wrap(conn)
	}
	return conn, err
}

// start starts a server. With port 0 the server does not listen. With maxStore 0 it stores
// without a limit, otherwise at most maxStore bytes. With users, only they can connect.
func start(dir string, port int, maxStore int64, users ...*server.User) (*testServer, error) {
	options := &server.Options{
		DontListen: port == 0, Host: "127.0.0.1", Port: port, JetStream: true, StoreDir: dir, JetStreamMaxStore: maxStore,
		NoSigs: true, NoLog: true, MaxPayload: maxPayload, Users: users,
	}
	s, err := server.NewServer(options)
	if err != nil {
		return nil, err
	}
	s.Start()
	if port != 0 {
		for !s.ReadyForConnections(time.Minute) {
		}
	}
	return &testServer{Server: s, options: options}, nil
}

func stop(s *server.Server) {
	s.Shutdown()
	s.WaitForShutdown()
}

// began returns the time at which the bubbles of this process begin. All servers of a process
// share a clock for the age of messages. It shows real time, and the goroutine that sets it must
// not belong to a bubble.
var began = sync.OnceValue(func() time.Time {
	ats.Register()
	return time.Now().Truncate(time.Second) // the cases of queuetest count in microseconds
})

// serve starts a server until the test ends.
func serve(t testing.TB) *testServer { return serveUpTo(t, 0) }

// serveUpTo is serve for a server that stores up to maxStore bytes, and whose only users are users.
func serveUpTo(t testing.TB, maxStore int64, users ...*server.User) *testServer {
	t.Helper()
	time.Sleep(time.Until(began()))
	s, err := start(t.TempDir(), 0, maxStore, users...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop(s.Server)
		time.Sleep(20 * time.Millisecond) // of the bubble's time: the server does not wait for the goroutine that writes an atomic batch
	})
	return s
}

// bubble runs a test in a synctest bubble with a server of its own.
func bubble(t *testing.T, test func(t *testing.T, s *testServer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, serve(t)) })
}

// reconnected says that a connection of an earlier test has reconnected. Then the driver has put a timer
// of that test's bubble into a pool of the process, from which no other bubble may take it.
var reconnected atomic.Bool

// connect returns a connection. The end of the test closes it.
func (s *testServer) connect(t testing.TB) *nats.Conn {
	t.Helper()
	return connect(t, "", nats.InProcessServer(s))
}

func connect(t testing.TB, url string, options ...nats.Option) *nats.Conn {
	t.Helper()
	if reconnected.Swap(false) {
		runtime.GC()
		runtime.GC() // now the pool is empty
	}
	nc, err := nats.Connect(url, append(options, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		nc.Close()
		if nc.Stats().Reconnects > 0 {
			reconnected.Store(true)
		}
	})
	return nc
}

// open opens a store. Claim is an hour unless c sets it.
func (s *testServer) open(t testing.TB, c Config) *Store {
	t.Helper()
	if c.Claim == 0 {
		c.Claim = time.Hour
	}
	return openOn(t, s.connect(t), c)
}

func openOn(t testing.TB, nc *nats.Conn, c Config) *Store {
	t.Helper()
	if c.Logger == nil {
		c.Logger = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	q, err := Open(context.Background(), nc, c)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// until waits until so returns true. It fails the test after an hour of the bubble's time.
func until(t testing.TB, want string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Hour); !so(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after an hour still waiting until %s", want)
		}
	}
}

// ready waits until s has read the partitions that it owns. Open itself waits for at most a second.
func ready(s *Store) *Store {
	for _, p := range s.partitions.mine() {
		<-p.ready
	}
	return s
}

// abandon stops s as a crash does: s does not hand over its partitions.
func (s *Store) abandon() {
	s.life.end()
	s.life.goroutines.Wait()
	s.partitions.lose()
}

// serverVariable is the environment variable that makes the test binary a server.
const serverVariable = "HOOKFERRY_NATS_SERVER"

// mainServer returns at once, unless serverVariable makes this process a server. A server prints
// its URL and runs until its standard input ends. TestMain calls mainServer first.
func mainServer() {
	if os.Getenv(serverVariable) == "" {
		return
	}
	if err := withServer(func(url string) {
		fmt.Println(url)
		io.Copy(io.Discard, os.Stdin)
	}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// withServer calls f with the URL of a server, which runs until f returns.
func withServer(f func(url string)) error {
	dir, err := os.MkdirTemp("", "natsqueue")
	if err != nil {
		return err
	}
	s, err := start(dir, server.RANDOM_PORT, 0)
	if err == nil {
		f(s.ClientURL())
		stop(s.Server)
	}
	return errors.Join(err, os.RemoveAll(dir))
}
