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

// conns bounds how many connections of an HTTP server are open, in all and for each client address.
// Its method changed is the http.Server.ConnState.
//
// If a new connection exceeds the bound for all, conns closes an idle connection to make room: one of
// the address with the most connections, and of these the one that has been idle the longest. So a
// client that leaves many connections idle takes none from other clients. If no connection is idle,
// or if the address has reached its bound, conns closes the new connection. HTTP clients then
// connect again.
type conns struct {
	max, maxPerAddress int
	// isProxy reports whether an address is a trusted proxy. The bound maxPerAddress does not apply
	// to such an address, because a proxy serves many clients.
	isProxy func(netip.Addr) bool
	address string // of the listener, for the log
	logger  *slog.Logger
	told    logLimit // of the lines about connections closed because of a bound

	mu    sync.Mutex
	clock uint64 // incremented when a connection becomes idle
	open  map[net.Conn]*conn
	by    map[netip.Prefix]int // how many connections an address has
}

const tellEvery = 10 * time.Second

type conn struct {
	// peer is the IPv4 address of the client, or its /64 of IPv6, because an IPv6 client usually can
	// use all addresses of its /64.
	peer netip.Prefix
	idle uint64 // the value of conns.clock when the connection became idle; 0 if it is not idle
}

func newConns(at net.Addr, max, maxPerAddress int, isProxy func(netip.Addr) bool, logger *slog.Logger) *conns {
	return &conns{
		address: at.String(), max: max, maxPerAddress: maxPerAddress, isProxy: isProxy, logger: logger,
		open: map[net.Conn]*conn{}, by: map[netip.Prefix]int{},
	}
}

// changed notes the state of a connection, and closes a connection if a new one exceeds a bound.
func (l *conns) changed(c net.Conn, state http.ConnState) {
	excess := l.note(c, state)
	if excess == nil {
		return
	}
	if t, ok := excess.(*tls.Conn); ok {
		excess = t.NetConn() // closing the tls.Conn could wait for the client
	}
	excess.Close()
	if ok, unlogged := l.told.pass(time.Now(), 1, tellEvery); ok {
		l.logger.Warn("connections of clients were closed, because limits.connections or limits.connectionsPerAddress is reached",
			"address", l.address, "count", unlogged+1, "latest", c.RemoteAddr().String())
	}
}

// note counts a new connection, forgets a closed one, and tracks which connections are idle. It
// returns the connection that has to be closed because of a bound, or nil.
func (l *conns) note(c net.Conn, state http.ConnState) (excess net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if state == http.StateNew {
		excess = l.admit(c)
	}
	switch this := l.open[c]; {
	case this == nil: // a bound has closed it
	case state == http.StateClosed, state == http.StateHijacked:
		l.drop(c)
	case state == http.StateNew, state == http.StateIdle:
		l.clock++
		this.idle = l.clock
	default:
		this.idle = 0
	}
	return excess
}

// admit counts c, unless a bound refuses it. It returns the connection that has to be closed because
// of a bound: c itself, an idle connection that c replaces, or nil. The caller holds l.mu.
func (l *conns) admit(c net.Conn) (excess net.Conn) {
	var ip netip.Addr
	if ap, err := netip.ParseAddrPort(c.RemoteAddr().String()); err == nil {
		ip = ap.Addr().Unmap().WithZone("")
	}
	bits := ip.BitLen()
	if ip.Is6() {
		bits = 64
	}
	peer, _ := ip.Prefix(bits)
	if l.by[peer] >= l.maxPerAddress && !l.isProxy(ip) {
		return c
	}
	if len(l.open) >= l.max {
		if excess = l.victim(); excess == nil {
			return c
		}
		l.drop(excess)
	}
	l.open[c] = &conn{peer: peer}
	l.by[peer]++
	return excess
}

// victim returns the idle connection that a new one replaces, or nil if none is idle. The caller
// holds l.mu.
func (l *conns) victim() (victim net.Conn) {
	var v *conn
	for nc, c := range l.open {
		if c.idle > 0 && (v == nil || l.by[c.peer] > l.by[v.peer] || l.by[c.peer] == l.by[v.peer] && c.idle < v.idle) {
			victim, v = nc, c
		}
	}
	return victim
}

// drop removes an open connection from the counts. The caller holds l.mu.
func (l *conns) drop(c net.Conn) {
	peer := l.open[c].peer
	delete(l.open, c)
	if l.by[peer]--; l.by[peer] == 0 {
		delete(l.by, peer)
	}
}
