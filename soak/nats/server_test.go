package nats

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/hookferry/analytics/internal/testkit"
)

// A testServer is a server with JetStream, on a port that stays the same.
type testServer struct {
	options server.Options
	running *server.Server
	links   []*link // the links from and to the other servers of its cluster
	routes  []*link // the links to this server
}

// startServer starts a server until the test ends.
func startServer(t *testing.T) *testServer {
	t.Helper()
	s := newServer(t)
	s.up(t)
	t.Cleanup(s.down)
	return s
}

func newServer(t *testing.T) *testServer {
	t.Helper()
	return &testServer{options: server.Options{
		Host: "127.0.0.1", Port: testkit.Port(t), JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true,
	}}
}

// up starts the server again.
func (s *testServer) up(t *testing.T) {
	options := s.options // the server writes to them
	running, err := server.NewServer(&options)
	if err != nil {
		t.Error(err)
		return
	}
	running.Start()
	for !running.ReadyForConnections(time.Minute) {
	}
	s.running = running
	for _, l := range s.routes { // each start gives the server another port for routes
		l.lead(running.ClusterAddr().String())
	}
}

// down stops the server. Its stored data stays.
func (s *testServer) down() {
	s.running.Shutdown()
	s.running.WaitForShutdown()
}

func (s *testServer) url() string { return fmt.Sprintf("nats://127.0.0.1:%d", s.options.Port) }

// partition cuts the server off from the other servers until heal is called.
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

// A testCluster is the servers of one cluster, which replicate streams.
type testCluster []*testServer

// startCluster starts a cluster of n servers. The end of the test stops them. Their routes go over
// links.
func startCluster(t *testing.T, n int) (c testCluster) {
	t.Helper()
	links := make([]map[int]*link, n)
	for i := range n {
		links[i] = make(map[int]*link)
		for j := range n {
			if j != i {
				links[i][j] = newLink(t)
			}
		}
	}
	for i := range n {
		s := newServer(t)
		for j := range n {
			if j == i {
				continue
			}
			s.options.Routes = append(s.options.Routes, &url.URL{Scheme: "nats-route", Host: links[i][j].ln.Addr().String()})
			s.links = append(s.links, links[i][j], links[j][i])
			s.routes = append(s.routes, links[j][i])
		}
		s.options.ServerName = fmt.Sprint("s", i)
		s.options.Cluster = server.ClusterOpts{
			Name: "test", Host: "127.0.0.1", Port: server.RANDOM_PORT,
			Advertise:   "127.0.0.1:1", // nothing listens there: otherwise servers would learn routes that bypass the links
			NoAdvertise: true,          // clients use only the servers that they were given
		}
		s.up(t)
		t.Cleanup(s.down)
		c = append(c, s)
	}
	testkit.Until(t, "the cluster has a leader of all servers", func() bool {
		for _, s := range c {
			if s.running.JetStreamIsLeader() && len(s.running.JetStreamClusterPeers()) == n {
				return true
			}
		}
		return false
	})
	return c
}

// leader returns the server that leads a stream.
func (c testCluster) leader(t *testing.T, stream string) (leader *testServer) {
	testkit.Until(t, "the stream has a leader", func() bool {
		for _, s := range c {
			if s.running.Running() && s.running.JetStreamIsStreamLeader(server.DEFAULT_GLOBAL_ACCOUNT, stream) {
				leader = s
			}
		}
		return leader != nil
	})
	return leader
}

// A link carries the routes from one server of a cluster to another. While it is cut, connections
// stay open, but no bytes arrive. They arrive once the link is no longer cut, as after an outage of
// a real network.
type link struct {
	ln   net.Listener
	gate sync.RWMutex // locked while the link is cut
	wg   sync.WaitGroup

	mu    sync.Mutex
	to    string // the server's address, once the server listens
	conns []net.Conn
}

// newLink listens until the test ends.
func newLink(t *testing.T) *link {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &link{ln: ln}
	l.wg.Go(l.accept)
	t.Cleanup(func() {
		ln.Close()
		l.mu.Lock()
		for _, c := range l.conns {
			c.Close()
		}
		l.mu.Unlock()
		l.wg.Wait()
	})
	return l
}

// lead sets the address to which later connections lead.
func (l *link) lead(to string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.to = to
}

func (l *link) accept() {
	for {
		near, err := l.ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		} else if err != nil {
			continue
		}
		l.mu.Lock()
		to := l.to
		l.mu.Unlock()
		far, err := net.Dial("tcp", to)
		if err != nil { // the server is down; the other server will try the route again
			near.Close()
			continue
		}
		l.mu.Lock()
		l.conns = append(l.conns, near, far)
		l.mu.Unlock()
		l.wg.Go(func() { l.pass(far, near) })
		l.wg.Go(func() { l.pass(near, far) })
	}
}

func (l *link) pass(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	io.Copy(gated{to, &l.gate}, from)
}

// A gated writer blocks while its gate is locked.
type gated struct {
	w    io.Writer
	gate *sync.RWMutex
}

func (g gated) Write(b []byte) (int, error) {
	g.gate.RLock()
	defer g.gate.RUnlock()
	return g.w.Write(b)
}
