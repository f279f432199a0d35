package server

import (
	"crypto/tls"
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

// TestConnsBoundsConnections opens, uses and closes connections. It checks which new connections stay
// open, and which connections are closed to make room.
func TestConnsBoundsConnections(t *testing.T) {
	l := newConns(&net.TCPAddr{}, 5, 3, func(ip netip.Addr) bool { return ip.String() == "10.9.9.9" }, slog.New(slog.DiscardHandler))
	raw := map[string]*fakeConn{}
	connect := func(name, from string, want bool) {
		t.Helper()
		raw[name] = &fakeConn{from: from}
		l.changed(raw[name], http.StateNew)
		if raw[name].closed == want {
			t.Fatalf("the new connection %s from %s was closed: %v, want %v", name, from, !want, want)
		}
	}
	closed := func(names ...string) {
		for _, name := range names {
			l.changed(raw[name], http.StateClosed)
		}
	}
	state := func(s http.ConnState, names ...string) {
		for _, name := range names {
			l.changed(raw[name], s)
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

	// A closed connection counts no more. Neither do those that a bound has closed.
	closed("a1", "a2", "a4", "c1", "d1", "e2")
	if len(l.open) != 5 {
		t.Errorf("%d connections count, want 5", len(l.open))
	}
	closed("a3", "b1", "d2", "d3", "e1")
	if len(l.open) != 0 || len(l.by) != 0 {
		t.Errorf("the listener counts %d connections of %d addresses after all are closed, want none", len(l.open), len(l.by))
	}
	// A state of a closed connection changes nothing.
	state(http.StateIdle, "a3")

	// A proxy has no bound, as it has many clients. All addresses of an IPv6 /64 share a bound.
	for i := range 5 {
		connect(fmt.Sprintf("p%d", i), fmt.Sprintf("10.9.9.9:%d", i+1), true)
		closed(fmt.Sprintf("p%d", i))
	}
	for i := range 3 {
		connect(fmt.Sprintf("v%d", i), fmt.Sprintf("[2001:db8:1:2:%x::1]:1", i), true)
	}
	connect("v3", "[2001:db8:1:2:ffff::1]:1", false)
	connect("v4", "[2001:db8:1:3::1]:1", true)
	connect("m1", "[::ffff:10.0.0.7]:1", true)

	// Under TLS, the connection itself is closed, without a last message to the client.
	over := &fakeConn{from: "[2001:db8:1:2::1]:1"}
	if l.changed(tls.Server(over, nil), http.StateNew); !over.closed {
		t.Error("a connection with TLS over the bound of its address stays open, want it closed")
	}
}
