package natsqueue

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/hookferry/analytics/webhook/internal/chaos"
)

// A dialer can cut its connections, and make no new ones.
type dialer struct {
	mu    sync.Mutex
	conns []net.Conn
	cut   bool
}

func (d *dialer) Dial(network, address string) (net.Conn, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cut {
		return nil, errors.New("cut off")
	}
	c, err := net.Dial(network, address)
	if err == nil {
		d.conns = append(d.conns, c)
	}
	return c, err
}

func (d *dialer) set(cut bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cut = cut
	if cut {
		for _, c := range d.conns {
			c.Close()
		}
		d.conns = nil
	}
}

// A cutter makes connections, and while it is on ends each of them after some thousand
// bytes of answers: often when the server has done what it was asked, and before it
// is heard of.
type cutter struct {
	on atomic.Bool
	n  atomic.Int64 // connections that were cut
}

func (c *cutter) Dial(network, address string) (net.Conn, error) {
	conn, err := net.Dial(network, address)
	return &cutConn{conn, c, 3000 + rand.IntN(20_000)}, err
}

type cutConn struct {
	net.Conn
	c    *cutter
	left int
}

func (c *cutConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.left -= n; c.left < 0 && c.c.on.Load() && err == nil {
		c.c.n.Add(1)
		c.Close()
		return 0, errors.New("cut")
	}
	return n, err
}

func TestCutConnections(t *testing.T) {
	t.Parallel()
	c := new(cutter)
	nc, err := nats.Connect(shared.url(), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond), nats.SetCustomDialer(c),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	q, err := Open(t.Context(), nc, &Config{Stream: nameOf(t.TempDir()), Claim: 5 * time.Second, Partitions: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	chaos.Cut(t, q, c.on.Store)
	if c.n.Load() < 10 {
		t.Errorf("only %d connections were cut", c.n.Load())
	}
	t.Logf("%d connections were cut", c.n.Load())
}

// Close waits for a server that hangs as long as for an answer, however long a claim lasts.
func TestCloseBesideHang(t *testing.T) {
	t.Parallel()
	l := newLink(t)
	l.lead(strings.TrimPrefix(shared.url(), "nats://"))
	q := openAt(t, "nats://"+l.ln.Addr().String(), Config{Stream: nameOf(t.TempDir()), Claim: time.Hour, Partitions: 2})
	if q.farewell != writeTimeout {
		t.Errorf("Close may take %v with a Claim of an hour, want %v", q.farewell, writeTimeout)
	}
	q.farewell = 100 * time.Millisecond
	if err := q.Release(t.Context()); err != nil { // what is left to do has no other bound
		t.Fatal(err)
	}
	l.gate.Lock()
	defer l.gate.Unlock()
	closed := make(chan error, 1)
	go func() { closed <- q.Close() }()
	select {
	case err := <-closed:
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Close = %v, want that there was no time", err)
		}
	case <-time.After(startTime):
		t.Error("Close hangs")
	}
}
