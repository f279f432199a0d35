package server

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"testing"
)

// A fakeConn has a remote address, and records that it was closed.
type fakeConn struct {
	net.Conn
	from   string
	closed bool
}

func (c *fakeConn) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(c.from))
}

func (c *fakeConn) Close() error { c.closed = true; return nil }

// A fakeListener accepts the connections in next, and then fails.
type fakeListener struct {
	net.Listener
	next []net.Conn
}

func (l *fakeListener) Addr() net.Addr { return &net.TCPAddr{} }

func (l *fakeListener) Accept() (net.Conn, error) {
	if len(l.next) == 0 {
		return nil, errNone
	}
	c := l.next[0]
	l.next = l.next[1:]
	return c, nil
}

var errNone = errors.New("no connection")

// TestConnsBoundsConnections opens, uses and closes connections. It checks which connections the
// listener accepts, and which it closes to make room.
func TestConnsBoundsConnections(t *testing.T) {
	l := newConns(&fakeListener{}, 5, 3, func(ip netip.Addr) bool { return ip.String() == "10.9.9.9" }, slog.New(slog.DiscardHandler))
	raw := map[string]*fakeConn{}
	open := map[string]net.Conn{}
	connect := func(name, from string, want bool) {
		t.Helper()
		raw[name] = &fakeConn{from: from}
		l.Listener.(*fakeListener).next = []net.Conn{raw[name]}
		c, err := l.Accept()
		if (err == nil) != want {
			t.Fatalf("Accept of %s from %s: error %v, want accepted: %v", name, from, err, want)
		}
		if err == nil {
			open[name] = c
			l.changed(c, http.StateNew)
		} else if !raw[name].closed {
			t.Errorf("the listener did not accept %s, want that it closes the connection", name)
		}
	}
	state := func(s http.ConnState, names ...string) {
		for _, name := range names {
			l.changed(open[name], s)
		}
	}
	wantClosed := func(names ...string) {
		t.Helper()
		want := map[string]bool{}
		for _, n := range names {
			want[n] = true
		}
		for n, c := range raw {
			if c.closed != want[n] {
				t.Errorf("connection %s: closed %v, want %v", n, c.closed, want[n])
			}
		}
	}

	connect("a1", "10.0.0.1:1", true)
	connect("a2", "10.0.0.1:2", true)
	connect("a3", "10.0.0.1:3", true)
	state(http.StateActive, "a1", "a2", "a3")
	connect("a4", "10.0.0.1:4", false) // the bound of an address
	connect("b1", "10.0.0.2:1", true)
	connect("c1", "10.0.0.3:1", true)
	state(http.StateActive, "b1", "c1")
	connect("d1", "10.0.0.4:1", false) // the bound of all addresses, and none is idle
	wantClosed("a4", "d1")

	// An idle connection makes room: one of the address with the most connections.
	state(http.StateIdle, "c1", "a2", "a1")
	connect("d2", "10.0.0.4:2", true)
	state(http.StateActive, "d2")
	wantClosed("a4", "d1", "a2") // a2 is idle for longer than a1
	connect("d3", "10.0.0.4:3", true)
	state(http.StateActive, "d3")
	wantClosed("a4", "d1", "a2", "a1")
	connect("e1", "10.0.0.5:1", true)
	state(http.StateActive, "e1")
	wantClosed("a4", "d1", "a2", "a1", "c1")
	connect("e2", "10.0.0.5:2", false)
	if len(l.open) != 5 {
		t.Errorf("the listener counts %d connections, want 5", len(l.open))
	}

	// A closed connection counts no more. A second Close changes nothing.
	for _, name := range []string{"a3", "b1", "d2", "d3", "e1"} {
		for range 2 {
			open[name].Close()
		}
	}
	if len(l.open) != 0 || len(l.by) != 0 {
		t.Errorf("the listener counts %d connections of %d addresses after all are closed, want none", len(l.open), len(l.by))
	}
	// A state of a closed connection changes nothing.
	state(http.StateIdle, "a3")

	// A proxy has no bound, as it has many clients. All addresses of an IPv6 /64 share a bound.
	for i := range 5 {
		connect(fmt.Sprintf("p%d", i), fmt.Sprintf("10.9.9.9:%d", i+1), true)
		open[fmt.Sprintf("p%d", i)].Close()
	}
	for i := range 3 {
		connect(fmt.Sprintf("v%d", i), fmt.Sprintf("[2001:db8:1:2:%x::1]:1", i), true)
	}
	connect("v3", "[2001:db8:1:2:ffff::1]:1", false)
	connect("v4", "[2001:db8:1:3::1]:1", true)
	connect("m1", "[::ffff:10.0.0.7]:1", true)

	// Under TLS, net/http reports states of the *tls.Conn around the connection.
	l.changed(tls.Server(open["v4"], nil), http.StateActive)
	if open["v4"].(*conn).idle != 0 {
		t.Error("the connection stays idle, want it active after a state of its *tls.Conn")
	}
}
