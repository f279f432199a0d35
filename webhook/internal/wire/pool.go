package wire

import (
	"cmp"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptrace"
	"slices"
	"sync/atomic"
	"time"
)

// idleTimeout is how long after the start of its last request an idle connection is closed. The
// close may come up to idleTimeout/2 later, because sweep runs that often. Receivers commonly close
// their end after one to two minutes.
const idleTimeout = 90 * time.Second

// A host is the receiver that all connections with the same key lead to.
type host struct {
	key key
	tls *tls.Config // configuration of its connections; nil without TLS and without a proxy
	h2  atomic.Bool // the latest connection to it spoke HTTP/2

	// Client.mu guards these.
	idle      []*conn // the last one was released last, and is used next
	inUse     int     // requests in progress
	used      time.Time
	transport *http.Transport
}

// acquire returns the host of t, and the idle connection to it that was released last, or
// nil. The host is kept at least until release.
func (c *Client) acquire(t *Target) (*host, *conn) {
	k := t.key
	if c.config.Proxy != nil {
		k = key{identity: k.identity} // all connections lead to the proxy
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.hosts[k]
	if h == nil {
		h = &host{key: k}
		if t.key.secure || c.config.Proxy != nil {
			h.tls = c.hostTLS(k.addr, t.tls)
		}
		c.hosts[k] = h
		if c.sweeps == nil {
			c.sweeps = time.AfterFunc(idleTimeout/2, c.sweep)
		}
	}
	h.inUse++
	if c.byNetHTTP(h, t) {
		return h, nil
	}
	return h, c.pop(h)
}

// hostTLS returns the TLS configuration of connections to the host with this address. Each host has a
// session cache of its own, so that it resumes no session that was verified by the rules of another
// configuration. The argument own is the configuration of its Targets, or nil.
func (c *Client) hostTLS(addr string, own *tls.Config) *tls.Config {
	config := cmp.Or(own, c.config.TLS, new(tls.Config)).Clone()
	if config.ServerName == "" {
		config.ServerName, _, _ = net.SplitHostPort(addr)
	}
	config.NextProtos = c.protos
	if config.ClientSessionCache == nil {
		config.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	}
	return config
}

// release ends the use of h by a request with this deadline. If cn is not nil, release
// keeps the connection cn for the next request.
func (c *Client) release(h *host, deadline time.Time, cn *conn) {
	var old []*conn
	c.mu.Lock()
	h.inUse--
	h.used = deadline
	if cn != nil && c.config.Context.Err() != nil {
		old = append(old, cn)
	} else if cn != nil {
		cn.kept, cn.used = true, deadline
		h.idle = append(h.idle, cn)
		if c.idle++; c.idle > c.config.MaxIdle {
			old = c.takeOldest(1 + c.config.MaxIdle/16)
		}
	}
	c.mu.Unlock()
	closeAll(old)
}

// pop takes the idle connection of h that was released last, or nil. The caller holds c.mu.
func (c *Client) pop(h *host) *conn {
	n := len(h.idle)
	if n == 0 {
		return nil
	}
	cn := h.idle[n-1]
	h.idle[n-1] = nil
	h.idle = h.idle[:n-1]
	c.idle--
	return cn
}

// takeIdle removes and returns the idle connections for which old returns true. The caller holds
// c.mu.
func (c *Client) takeIdle(old func(*conn) bool) (taken []*conn) {
	for _, h := range c.hosts {
		h.idle = slices.DeleteFunc(h.idle, func(cn *conn) bool {
			if old(cn) {
				taken = append(taken, cn)
				return true
			}
			return false
		})
	}
	c.idle -= len(taken)
	return taken
}

// takeOldest removes and returns about n idle connections, those that have been idle the longest. It
// looks at all of them, so it takes several at once to be rare. The caller holds c.mu.
func (c *Client) takeOldest(n int) []*conn {
	var times []time.Time
	for _, h := range c.hosts {
		for _, cn := range h.idle {
			times = append(times, cn.used)
		}
	}
	slices.SortFunc(times, time.Time.Compare)
	return c.takeIdle(func(cn *conn) bool { return !cn.used.After(times[n-1]) })
}

// sweep closes connections that have been idle for too long.
func (c *Client) sweep() { c.closeIdle(time.Now().Add(c.config.Timeout - idleTimeout)) }

// closeIdle closes idle connections whose last request had a deadline before the argument before. It
// drops hosts that are left without connections.
func (c *Client) closeIdle(before time.Time) {
	c.mu.Lock()
	old := c.takeIdle(func(cn *conn) bool { return !cn.used.After(before) })
	var transports []*http.Transport // of the hosts that it drops
	for k, h := range c.hosts {
		if h.inUse == 0 && len(h.idle) == 0 && h.used.Before(before) {
			delete(c.hosts, k)
			if h.transport != nil {
				transports = append(transports, h.transport)
			}
		}
	}
	if len(c.hosts) > 0 {
		c.sweeps.Reset(idleTimeout / 2)
	} else if c.sweeps != nil {
		c.sweeps.Stop()
		c.sweeps = nil
	}
	c.mu.Unlock()
	closeAll(old)
	for _, t := range transports {
		t.CloseIdleConnections()
	}
}

func closeAll(conns []*conn) {
	for _, cn := range conns {
		cn.close()
	}
}

// dial opens a new connection to h.
func (c *Client) dial(ctx context.Context, deadline time.Time, h *host) (*conn, error) {
	ctx, cancel := context.WithDeadlineCause(ctx, deadline, ErrTimeout)
	defer cancel()
	nc, err := connect(ctx, c.config.Dial, h.key.addr, h.tls)
	if err != nil {
		return nil, err
	}
	cn := &conn{client: c, nc: nc}
	if tc, ok := nc.(*tls.Conn); ok {
		nc = tc.NetConn()
	}
	cn.tap = nc.(*tap)
	cn.stop = context.AfterFunc(c.config.Context, cn.interrupt)
	return cn, nil
}

// connect opens a connection to addr: a tap, with TLS over it unless config is nil. connect tells
// an httptrace.ClientTrace in ctx of a successful TLS handshake. If dial uses a net.Dialer, the
// net.Dialer tells the ClientTrace of the dial.
func connect(ctx context.Context, dial func(context.Context, string, string) (net.Conn, error), addr string, config *tls.Config) (net.Conn, error) {
	nc, err := dial(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	t := newTap(nc, config != nil)
	if config == nil {
		return t, nil
	}
	tc := tls.Client(t, config)
	if err := tc.HandshakeContext(ctx); err != nil {
		nc.Close()
		return nil, err
	}
	if t := httptrace.ContextClientTrace(ctx); t != nil && t.TLSHandshakeDone != nil {
		t.TLSHandshakeDone(tc.ConnectionState(), nil)
	}
	return tc, nil
}
