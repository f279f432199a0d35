package server

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"time"
)

// A stop must cut off no request that has begun: balancers do not repeat a POST. The Shutdown of
// net/http does cut some: it closes connections whose next request has arrived, but is not read yet.
// So connections end before it in two ways. Answers say "Connection: close", or GOAWAY by HTTP/2, from
// the moment the stop begins. Connections that get no request meanwhile are ended while they are idle.
// With HTTP/2, Shutdown cuts off nothing, because GOAWAY names the last request that is served.

// A lastAnswer is the answer to a request. During a stop it ends its connection.
type lastAnswer struct {
	http.ResponseWriter
	conns *conns
}

// say adds the header that ends the connection, during a stop. It has no effect once the header has
// been sent.
func (a *lastAnswer) say() {
	if a.conns.stopping.Load() {
		a.Header().Set("Connection", "close") // by HTTP/2, net/http sends GOAWAY instead
	}
}

func (a *lastAnswer) WriteHeader(status int) {
	a.say()
	a.ResponseWriter.WriteHeader(status)
}

func (a *lastAnswer) Write(b []byte) (int, error) {
	a.say()
	return a.ResponseWriter.Write(b)
}

// Unwrap is for [http.ResponseController].
func (a *lastAnswer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// endIdle ends the idle connections by HTTP/1, and others as soon as they are idle. If unused, it
// also ends new connections on which nothing has arrived.
func (l *conns) endIdle(unused bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.idleEnd = true
	for nc, c := range l.open {
		if client := clientOf(nc); client != nil && c.idle > 0 {
			client.end(unused)
		}
	}
}

// wait waits until no connection by HTTP/1 is open, or ctx is done.
func (l *conns) wait(ctx context.Context) {
	for l.openHTTP1() {
		select {
		case <-l.dropped:
		case <-ctx.Done():
			return
		}
	}
}

func (l *conns) openHTTP1() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for nc := range l.open {
		if client := clientOf(nc); client != nil && !client.usesHTTP2() {
			return true
		}
	}
	return false
}

// A clientListener accepts connections that can be ended while they are idle.
type clientListener struct{ net.Listener }

func (l clientListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &clientConn{Conn: c}, nil
}

// clientOf returns the clientConn below a connection, or nil.
func clientOf(c net.Conn) *clientConn {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	client, _ := c.(*clientConn)
	return client
}

// lastLook is how long an ending connection looks for bytes that have already arrived.
const lastLook = time.Millisecond

// A clientConn is a connection of a client. It ends on request, unless a request has begun to arrive.
type clientConn struct {
	net.Conn

	mu       sync.Mutex
	deadline time.Time // that the HTTP server has set for reads
	used     bool      // it has had a request
	begun    bool      // bytes have come since the start, or since the connection became idle
	ending   bool      // the deadline for reads has passed, to end the connection
	http2    bool
}

// Read reads as the connection does. While the connection is ending, bytes that have come anyway keep
// it open.
func (c *clientConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n == 0 && c.isEnding() { // a read after its deadline does not look for bytes
		c.Conn.SetReadDeadline(time.Now().Add(lastLook))
		n, err = c.Conn.Read(b)
	}
	if n > 0 {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.begun = true
		if c.ending {
			c.ending = false
			c.Conn.SetReadDeadline(c.deadline)
		}
	}
	return n, err
}

func (c *clientConn) isEnding() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ending
}

func (c *clientConn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline = t
	if c.ending {
		return nil
	}
	return c.Conn.SetReadDeadline(t)
}

// CloseWrite lets net/http end an answer before it has read the whole request.
func (c *clientConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// idle notes that the connection waits for its next request, and may end it.
func (c *clientConn) idle(end bool) {
	c.mu.Lock()
	c.used, c.begun = true, false
	c.mu.Unlock()
	if end {
		c.end(false)
	}
}

// end lets reads fail, which ends the connection, unless a request has begun. Without unused, it spares
// a connection that has had no request.
func (c *clientConn) end(unused bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.begun && !c.http2 && (c.used || unused) {
		c.ending = true
		c.Conn.SetReadDeadline(time.Unix(1, 0))
	}
}

func (c *clientConn) usesHTTP2() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.http2
}

// greeted notes whether a client offers HTTP/2, which it then uses. It is a tls.Config.GetConfigForClient.
func greeted(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	if c, ok := hello.Conn.(*clientConn); ok {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, p := range hello.SupportedProtos {
			c.http2 = c.http2 || p == "h2"
		}
	}
	return nil, nil
}
