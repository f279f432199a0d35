package natsqueue

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/hookferry/analytics/internal/porttest"
)

// maxPayload has room for the largest body of queuetest.
const maxPayload = 4 << 20

// startTime bounds the start of a server, and what is otherwise waited for that comes in no
// time where nothing is wrong and the processors are not busy with the tests of others.
const startTime = time.Minute

// busyClaim is the Claim of stores that are to keep what they own: a sign of life may be late by half of
// it, as on a machine that is busy with other tests.
const busyClaim = 10 * time.Second

// serverVariable is the environment variable that makes the test binary a server.
const serverVariable = "HOOKFERRY_NATS_SERVER"

// mainServer is called by TestMain first. It does not return in the process of a server,
// which prints its URL and runs until its standard input ends.
func mainServer() {
	if os.Getenv(serverVariable) == "" {
		return
	}
	s, err := startServer()
	if err == nil {
		fmt.Println(s.url())
		io.Copy(io.Discard, os.Stdin)
		err = s.close()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// A testServer is a server with JetStream, on a port that stays the same.
type testServer struct {
	options server.Options
	running *server.Server
	dir     string
	links   []*link // from and to the others of its cluster
	routes  []*link // those to it
}

// startServer starts a server of its own.
func startServer() (*testServer, error) {
	port, err := porttest.Free()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "natsqueue")
	if err != nil {
		return nil, err
	}
	s := &testServer{dir: dir}
	s.options = server.Options{
		Host: "127.0.0.1", Port: port, JetStream: true, StoreDir: dir,
		NoSigs: true, NoLog: true, MaxPayload: maxPayload,
	}
	if err := s.up(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return s, nil
}

// up starts the server again.
func (s *testServer) up() error {
	options := s.options // it writes to them
	running, err := server.NewServer(&options)
	if err != nil {
		return err
	}
	running.Start()
	if !running.ReadyForConnections(startTime) {
		running.Shutdown()
		running.WaitForShutdown()
		return fmt.Errorf("the server was not ready in %v", startTime)
	}
	s.running = running
	for _, l := range s.routes { // its port for routes is another each time
		l.lead(running.ClusterAddr().String())
	}
	return nil
}

// down stops the server. What it stores stays.
func (s *testServer) down() {
	s.running.Shutdown()
	s.running.WaitForShutdown()
}

// url is where it listens.
func (s *testServer) url() string { return fmt.Sprintf("nats://127.0.0.1:%d", s.options.Port) }

// close stops the server, and forgets what it stored.
func (s *testServer) close() error {
	s.down()
	return os.RemoveAll(s.dir)
}

// partition parts the server from the others of its cluster until heal is called.
func (s *testServer) partition() (heal func()) {
	for _, l := range s.links {
		l.gate.Lock()
	}
	return func() {
		for _, l := range s.links {
			l.gate.Unlock()
		}
	}
}
