package wire

import (
	"cmp"
	"context"
	"crypto/tls"
	"net"
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
	idle     []*conn       // the last one was released last, and is used next
	shared   []*conn       // connections of net/http, idle or in use
	dialling chan struct{} // closed when the dial for shared that began last has ended; nil without one
	inUse    int           // requests in progress
	used     time.Time
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
	var old *conn
	c.mu.Lock()
	h.inUse--
	h.used = deadline
	if cn != nil && c.config.Context.Err() != nil {
		old = cn
	} else if cn != nil {
		cn.kept, cn.used, cn.host = true, deadline, h
		h.idle = append(h.idle, cn)
		old = c.addIdle(cn)
	}
	c.mu.Unlock()
	if old != nil {
		old.close()
	}
}

// addIdle counts one more idle connection. It removes and returns the oldest one if they are too many.
// The caller holds c.mu.
func (c *Client) addIdle(cn *conn) (old *conn) {
	if c.idle.push(cn); c.idle.n <= c.config.MaxIdle {
		return nil
	}
	old = c.idle.oldest
	c.idle.remove(old)
	if h := old.host; old.shared != nil {
		h.shared = slices.DeleteFunc(h.shared, func(cn *conn) bool { return cn == old })
	} else {
		h.idle = slices.Delete(h.idle, 0, 1) // it is the oldest of its host, too
	}
	return old
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
	c.idle.remove(cn)
	return cn
}

// An idleList has the idle connections of all hosts, in the order in which they were released. It is
// a doubly linked list, because there may be very many hosts, and the oldest must be found at once.
type idleList struct {
	oldest, newest *conn
	n              int
}

func (l *idleList) push(cn *conn) {
	cn.older, l.newest = l.newest, cn
	if cn.older == nil {
		l.oldest = cn
	} else {
		cn.older.newer = cn
	}
	l.n++
}

func (l *idleList) remove(cn *conn) {
	if cn.older == nil {
		l.oldest = cn.newer
	} else {
		cn.older.newer = cn.newer
	}
	if cn.newer == nil {
		l.newest = cn.older
	} else {
		cn.newer.older = cn.older
	}
	cn.older, cn.newer = nil, nil
	l.n--
}

// sweep closes connections that have been idle for too long.
func (c *Client) sweep() { c.closeIdle(time.Now().Add(c.config.Timeout - idleTimeout)) }

// closeIdle closes idle connections whose last request had a deadline before the argument before. It
// drops hosts that are left without connections.
func (c *Client) closeIdle(before time.Time) {
	var old []*conn
	take := func(cn *conn) bool {
		if cn.users > 0 || cn.used.After(before) {
			return false
		}
		c.idle.remove(cn)
		old = append(old, cn)
		return true
	}
	c.mu.Lock()
	for k, h := range c.hosts {
		h.idle, h.shared = slices.DeleteFunc(h.idle, take), slices.DeleteFunc(h.shared, take)
		if h.inUse == 0 && len(h.idle) == 0 && len(h.shared) == 0 && h.used.Before(before) {
			delete(c.hosts, k)
		}
	}
	if len(c.hosts) > 0 {
		c.sweeps.Reset(idleTimeout / 2)
	} else if c.sweeps != nil {
		c.sweeps.Stop()
		c.sweeps = nil
	}
	c.mu.Unlock()
	for _, cn := range old {
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
	cn.peek = nc.(*peekConn)
	cn.stop = context.AfterFunc(c.config.Context, cn.interrupt)
	return cn, nil
}

// connect opens a connection to addr: a peekConn, with TLS over it unless config is nil. connect tells
// an httptrace.ClientTrace in ctx of a successful TLS handshake. If dial uses a net.Dialer, the
// net.Dialer tells the ClientTrace of the dial.
func connect(ctx context.Context, dial func(context.Context, string, string) (net.Conn, error), addr string, config *tls.Config) (net.Conn, error) {
	nc, err := dial(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	t := newPeekConn(nc, config != nil)
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
