package server

import (
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// conns is a listener that bounds how many connections are open, in all and for each client
// address.
//
// If a new connection exceeds the bound for all, conns closes an idle connection to make room: one of
// the address with the most connections, and of these the one that has been idle the longest. So a
// client that leaves many connections idle takes none from other clients. If no connection is idle,
// or if the address has reached its bound, conns closes the new connection. HTTP clients then
// connect again.
type conns struct {
	net.Listener
	max, maxPerAddress int
	// isProxy reports whether an address is a trusted proxy. The bound maxPerAddress does not apply
	// to such an address, because a proxy serves many clients.
	isProxy func(netip.Addr) bool
	logger  *slog.Logger
	told    logLimit // of the lines about connections closed because of a bound

	mu    sync.Mutex
	clock uint64 // incremented when a connection becomes idle
	open  map[*conn]struct{}
	by    map[netip.Prefix]int // how many connections an address has
}

const tellEvery = 10 * time.Second

type conn struct {
	net.Conn
	of *conns
	// peer is the IPv4 address of the client, or its /64 of IPv6, because an IPv6 client usually can
	// use all addresses of its /64.
	peer netip.Prefix
	idle uint64 // the value of conns.clock when the connection became idle; 0 if it is not idle
}

func newConns(l net.Listener, max, maxPerAddress int, isProxy func(netip.Addr) bool, logger *slog.Logger) *conns {
	return &conns{
		Listener: l, max: max, maxPerAddress: maxPerAddress, isProxy: isProxy, logger: logger,
		open: map[*conn]struct{}{}, by: map[netip.Prefix]int{},
	}
}

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
		if admitted == nil {
			c.Close()
		}
		if admitted == nil || victim != nil {
			if ok, unlogged := l.told.pass(time.Now(), 1, tellEvery); ok {
				l.logger.Warn("connections of clients were closed, because limits.connections or limits.connectionsPerAddress is reached",
					"address", l.Addr().String(), "count", unlogged+1, "latest", c.RemoteAddr().String())
			}
		}
		if admitted != nil {
			return admitted, nil
		}
	}
}

// admit counts c and returns it wrapped, or nil if a bound refuses it. The result victim is an idle
// connection that c replaces, or nil. The caller closes the victim.
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
	if l.by[key] >= l.maxPerAddress && !l.isProxy(ip) {
		return nil, nil
	}
	if len(l.open) >= l.max {
		if victim = l.victim(); victim == nil {
			return nil, nil
		}
		l.drop(victim)
	}
	added := &conn{Conn: c, of: l, peer: key}
	l.open[added] = struct{}{}
	l.by[key]++
	return added, victim
}

// victim returns the idle connection that a new one replaces, or nil if none is idle. The caller
// holds l.mu.
func (l *conns) victim() (v *conn) {
	for c := range l.open {
		if c.idle > 0 && (v == nil || l.by[c.peer] > l.by[v.peer] || l.by[c.peer] == l.by[v.peer] && c.idle < v.idle) {
			v = c
		}
	}
	return v
}

// drop removes c from the counts. The caller holds l.mu.
func (l *conns) drop(c *conn) {
	if _, ok := l.open[c]; !ok {
		return
	}
	delete(l.open, c)
	if l.by[c.peer]--; l.by[c.peer] == 0 {
		delete(l.by, c.peer)
	}
}

func (c *conn) Close() error {
	c.of.mu.Lock()
	c.of.drop(c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// CloseWrite closes the writing side. After net/http has answered a request whose body it has not
// read to the end, it calls CloseWrite. Without CloseWrite, the client might get a reset instead of
// the answer.
func (c *conn) CloseWrite() error {
	if c, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return nil
}

// changed tracks which connections are idle. It is the http.Server.ConnState.
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
	c.idle = 0
	if state == http.StateNew || state == http.StateIdle {
		l.clock++
		c.idle = l.clock
	}
}
