package server

import (
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// conns bounds how many connections of an HTTP server are open, in all and for each client address.
// Its method changed is the http.Server.ConnState. The same bounds hold for the requests of HTTP/2,
// of which a connection has up to 250 at once; see handler.
//
// If a new connection exceeds the bound for all, conns takes the address with the most connections,
// and closes the one of them that has been idle the longest. So a client that leaves many
// connections idle takes none from others. If none is idle, or the address has reached its bound,
// conns closes the new connection. HTTP clients then connect again.
type conns struct {
	max, maxPerAddress int
	// isProxy reports whether an address is a trusted proxy, to which maxPerAddress does not apply.
	isProxy func(netip.Addr) bool
	address string // of the listener, for the log
	logger  *slog.Logger
	told    logLimit // of the lines about connections closed because of a bound

	mu    sync.Mutex
	clock uint64 // incremented when a connection becomes idle
	open  map[net.Conn]*conn
	by    map[netip.Prefix]int // how many connections an address has

	streams   int // requests of HTTP/2 in progress
	streamsBy map[netip.Prefix]int

	stopping atomic.Bool   // answers end their connections
	idleEnd  bool          // connections end as soon as they are idle
	dropped  chan struct{} // has an element after a connection was dropped
}

type conn struct {
	peer netip.Prefix
	idle uint64 // the value of conns.clock when the connection became idle; 0 if it is not idle
}

// peerOf returns the address of a client, and what counts as one address: the IPv4 address, or the
// /64 of IPv6, because an IPv6 client usually can use all addresses of its /64.
func peerOf(address string) (ip netip.Addr, peer netip.Prefix) {
	if ap, err := netip.ParseAddrPort(address); err == nil {
		ip = ap.Addr().Unmap().WithZone("")
	}
	bits := ip.BitLen()
	if ip.Is6() {
		bits = 64
	}
	peer, _ = ip.Prefix(bits)
	return ip, peer
}

func newConns(at net.Addr, max, maxPerAddress int, isProxy func(netip.Addr) bool, logger *slog.Logger) *conns {
	return &conns{
		address: at.String(), max: max, maxPerAddress: maxPerAddress, isProxy: isProxy, logger: logger,
		open: map[net.Conn]*conn{}, by: map[netip.Prefix]int{}, streamsBy: map[netip.Prefix]int{}, dropped: make(chan struct{}, 1),
	}
}

// handler passes requests on to next, but cuts off those of HTTP/2 beyond a bound. Otherwise a slow
// client could have hundreds of thousands of them, each with the memory of a goroutine. During a stop
// the answers end their connections.
func (l *conns) handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		last := &lastAnswer{w, l}
		defer last.say()
		w = last
		if r.ProtoMajor < 2 { // a connection has one request at a time
			next.ServeHTTP(w, r)
			return
		}
		ip, peer := peerOf(r.RemoteAddr)
		l.mu.Lock()
		excess := l.streams >= l.max || l.streamsBy[peer] >= l.maxPerAddress && !l.isProxy(ip)
		if !excess {
			l.streams++
			l.streamsBy[peer]++
		}
		l.mu.Unlock()
		if excess {
			l.tell(r.RemoteAddr)
			panic(http.ErrAbortHandler) // resets the stream: the client may not read an answer
		}
		defer func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.streams--
			subtract(l.streamsBy, peer)
		}()
		next.ServeHTTP(w, r)
	})
}

// changed notes the state of a connection, and closes one if a new one exceeds a bound.
func (l *conns) changed(c net.Conn, state http.ConnState) {
	excess := l.note(c, state)
	if excess == nil {
		return
	}
	if t, ok := excess.(*tls.Conn); ok {
		excess = t.NetConn() // closing the tls.Conn could wait for the client
	}
	excess.Close()
	l.tell(c.RemoteAddr().String())
}

// tell logs that a bound is reached, at most every ten seconds.
func (l *conns) tell(client string) {
	if ok, unlogged := l.told.pass(time.Now(), 1, 10*time.Second); ok {
		l.logger.Warn("connections of clients were closed, or requests by HTTP/2 cut off, because limits.connections or limits.connectionsPerAddress is reached",
			"address", l.address, "count", unlogged+1, "latest", client)
	}
}

// note notes the state of a connection. It returns the one to close because of a bound, or nil.
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
		if client := clientOf(c); client != nil && state == http.StateIdle {
			client.idle(l.idleEnd)
		}
	default:
		this.idle = 0
	}
	return excess
}

// admit counts c, unless a bound refuses it. It returns the connection to close because of a bound: c
// itself, an idle one that c replaces, or nil. The caller holds l.mu.
func (l *conns) admit(c net.Conn) (excess net.Conn) {
	ip, peer := peerOf(c.RemoteAddr().String())
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

// victim returns the idle connection that a new one replaces, or nil. The caller holds l.mu.
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
	subtract(l.by, peer)
	select {
	case l.dropped <- struct{}{}:
	default: // nobody has looked since an earlier one
	}
}

func subtract(by map[netip.Prefix]int, peer netip.Prefix) {
	if by[peer]--; by[peer] == 0 {
		delete(by, peer)
	}
}
