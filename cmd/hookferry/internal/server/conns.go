package server

import (
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"sync"
)

// conns is a listener that bounds its connections: all of them, and those of
// one address.
//
// At the bound of all, an idle one makes room for a new one: of the address
// with the most, the one that has been idle longest. So whoever opens
// connections and leaves them takes from nobody else. Where none is idle, and at
// the bound of an address, the new connection is closed: to clients of HTTP a
// failed connection, after which they come again.
type conns struct {
	net.Listener
	max, maxPerAddress int
	many               func(netip.Addr) bool // whether an address is that of many clients

	mu     sync.Mutex
	all    int
	clock  uint64 // grows when a connection becomes idle
	by     map[netip.Prefix]*peer
	closed int64 // for a bound
}

// A peer is whoever is at the other end of connections: an IPv4 address or, as
// one has as many of them as one likes, the first half of an IPv6 address.
type peer struct {
	n    int
	idle map[*conn]uint64 // and when that began
}

// A conn is one connection.
type conn struct {
	net.Conn
	of   *conns
	peer netip.Prefix
	gone bool // guarded by of.mu
}

func newConns(l net.Listener, max, maxPerAddress int, many func(netip.Addr) bool) *conns {
	return &conns{Listener: l, max: max, maxPerAddress: maxPerAddress, many: many, by: map[netip.Prefix]*peer{}}
}

// Accept returns the next connection that is within the bounds.
func (l *conns) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		admitted, victim := l.admit(c)
		if victim != nil {
			victim.Close()
		}
		if admitted != nil {
			return admitted, nil
		}
		c.Close()
	}
}

// admit counts c, or returns nil. The victim is to be closed, if there is one.
func (l *conns) admit(c net.Conn) (admitted net.Conn, victim *conn) {
	var ip netip.Addr
	if ap, err := netip.ParseAddrPort(c.RemoteAddr().String()); err == nil {
		ip = ap.Addr().Unmap().WithZone("")
	}
	bits := ip.BitLen()
	if ip.Is6() {
		bits = 64
	}
	key, _ := ip.Prefix(bits)

	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.by[key]
	if p != nil && p.n >= l.maxPerAddress && !l.many(ip) {
		l.closed++
		return nil, nil
	}
	if l.all >= l.max {
		l.closed++
		if victim = l.victim(); victim == nil {
			return nil, nil
		}
		l.drop(victim)
		p = l.by[key] // may be gone
	}
	if p == nil {
		p = &peer{idle: map[*conn]uint64{}}
		l.by[key] = p
	}
	l.all++
	p.n++
	return &conn{Conn: c, of: l, peer: key}, victim
}

// victim returns the connection that makes room, nil if none is idle.
func (l *conns) victim() *conn {
	var most *peer
	for _, p := range l.by {
		if len(p.idle) > 0 && (most == nil || p.n > most.n) {
			most = p
		}
	}
	if most == nil {
		return nil
	}
	var oldest *conn
	for c, since := range most.idle {
		if oldest == nil || since < most.idle[oldest] {
			oldest = c
		}
	}
	return oldest
}

// drop stops counting c.
func (l *conns) drop(c *conn) {
	if c.gone {
		return
	}
	c.gone = true
	l.all--
	p := l.by[c.peer]
	delete(p.idle, c)
	if p.n--; p.n == 0 {
		delete(l.by, c.peer)
	}
}

// Close closes the connection and stops counting it.
func (c *conn) Close() error {
	c.of.mu.Lock()
	c.of.drop(c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// changed is for http.Server.ConnState.
func (l *conns) changed(nc net.Conn, state http.ConnState) {
	if t, ok := nc.(*tls.Conn); ok {
		nc = t.NetConn()
	}
	c, ok := nc.(*conn)
	if !ok {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.gone {
		return
	}
	p := l.by[c.peer]
	switch state {
	case http.StateNew, http.StateIdle:
		l.clock++
		p.idle[c] = l.clock
	default:
		delete(p.idle, c)
	}
}

// refused returns how many connections were closed for a bound.
func (l *conns) refused() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}
