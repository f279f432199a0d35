package wire

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptrace"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// idleTimeout is how long after the beginning of its last request an idle
// connection is closed, or up to half as long later. Receivers commonly close
// theirs after one to two minutes.
const idleTimeout = 90 * time.Second

// A host is one end of the connections of a key.
type host struct {
	key    key
	client *Client
	tls    *tls.Config // of its connections; nil without TLS
	h2     atomic.Bool // it was last seen to speak HTTP/2

	mu        sync.Mutex
	gone      bool // no longer in Client.hosts
	inUse     int  // requests
	used      time.Time
	idle      []*conn // the one used last at the end, to be used next
	transport *http.Transport
}

// acquire returns the host of t, which is not forgotten until release or put,
// and the idle connection of it that was used last, or nil.
func (c *Client) acquire(t *Target) (*host, *conn) {
	for {
		h := t.host.Load()
		if h == nil {
			k := t.key
			if c.config.Proxy != nil {
				k = key{tls: k.tls} // the connections are the proxy's
			}
			h = c.host(k)
			t.host.Store(h)
		}
		h.mu.Lock()
		if !h.gone {
			h.inUse++
			cn := h.pop()
			h.mu.Unlock()
			return h, cn
		}
		h.mu.Unlock()
		t.host.CompareAndSwap(h, nil)
	}
}

// host returns the host of k.
func (c *Client) host(k key) *host {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.hosts[k]
	if h != nil {
		return h
	}
	h = &host{key: k, client: c, used: time.Now()}
	if k.secure {
		h.tls = c.hostTLS(k)
	}
	c.hosts[k] = h
	if c.sweeps == nil && !c.closed {
		c.sweeps = time.AfterFunc(idleTimeout/2, c.sweep)
	}
	return h
}

// baseTLS returns the configuration of connections of k, whatever the host.
func (c *Client) baseTLS(k key) *tls.Config {
	base := k.tls
	if base == nil {
		base = c.config.TLS
	}
	if base == nil {
		return new(tls.Config)
	}
	return base.Clone()
}

// hostTLS returns the configuration of connections to k. The cache of sessions
// is its own: one that was begun under another configuration was verified by
// other rules.
func (c *Client) hostTLS(k key) *tls.Config {
	config := c.baseTLS(k)
	if config.ServerName == "" {
		config.ServerName, _, _ = net.SplitHostPort(k.addr)
	}
	config.NextProtos = []string{"http/1.1"}
	if c.http2 {
		config.NextProtos = []string{"h2", "http/1.1"}
	}
	if config.ClientSessionCache == nil {
		config.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	}
	return config
}

// release ends the use of h by a request with that deadline.
func (h *host) release(deadline time.Time) {
	h.mu.Lock()
	h.inUse--
	h.used = deadline
	h.mu.Unlock()
}

// take is acquire for a request that needs another connection.
func (h *host) take() *conn {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.pop()
}

// pop returns the idle connection that was used last, or nil. The caller holds
// h.mu.
func (h *host) pop() *conn {
	n := len(h.idle)
	if n == 0 {
		return nil
	}
	cn := h.idle[n-1]
	h.idle[n-1] = nil
	h.idle = h.idle[:n-1]
	h.client.idle.Add(-1)
	return cn
}

// put is release for a request after which cn is kept for the next. deadline is
// that of the request, which says when it began.
func (h *host) put(cn *conn, deadline time.Time) {
	c := h.client
	h.mu.Lock()
	h.inUse--
	if h.gone || c.aborted.Load() {
		h.mu.Unlock()
		cn.close()
		return
	}
	cn.kept = true
	cn.used = deadline
	h.used = deadline
	h.idle = append(h.idle, cn)
	h.mu.Unlock()
	if c.idle.Add(1) > int64(c.config.MaxIdle) {
		c.trim()
	}
}

// sweep closes connections that have been idle for long, and forgets hosts that
// have none. It runs at intervals while there are hosts.
func (c *Client) sweep() {
	var old []*conn
	var gone []*host
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	before := time.Now().Add(c.config.Timeout - idleTimeout)
	for k, h := range c.hosts {
		h.mu.Lock()
		old = h.oldest(old, before)
		if h.inUse == 0 && len(h.idle) == 0 && h.used.Before(before) {
			h.gone = true
			gone = append(gone, h)
			delete(c.hosts, k)
		}
		h.mu.Unlock()
	}
	if len(c.hosts) > 0 {
		c.sweeps.Reset(idleTimeout / 2)
	} else {
		c.sweeps = nil
	}
	c.mu.Unlock()
	for _, cn := range old {
		cn.close()
	}
	for _, h := range gone {
		h.discard()
	}
}

// oldest takes out the idle connections that were not used after until, and appends
// them to dst. The caller holds h.mu.
func (h *host) oldest(dst []*conn, until time.Time) []*conn {
	n := 0
	for n < len(h.idle) && !h.idle[n].used.After(until) {
		n++
	}
	dst = append(dst, h.idle[:n]...)
	h.idle = slices.Delete(h.idle, 0, n)
	h.client.idle.Add(int64(-n))
	return dst
}

// trim closes the sixteenth of the idle connections that was not used for longest.
// It looks at all of them, so it closes several at once to be called rarely.
func (c *Client) trim() {
	var used []time.Time
	var old []*conn
	c.mu.Lock()
	for _, h := range c.hosts {
		h.mu.Lock()
		for _, cn := range h.idle {
			used = append(used, cn.used)
		}
		h.mu.Unlock()
	}
	if len(used) > c.config.MaxIdle { // else another trim was faster
		slices.SortFunc(used, time.Time.Compare)
		until := used[len(used)/16]
		for _, h := range c.hosts {
			h.mu.Lock()
			old = h.oldest(old, until)
			h.mu.Unlock()
		}
	}
	c.mu.Unlock()
	for _, cn := range old {
		cn.close()
	}
}

// discard closes what h keeps, and lets it keep no more.
func (h *host) discard() {
	h.mu.Lock()
	h.gone = true
	idle, t := h.idle, h.transport
	h.idle = nil
	h.client.idle.Add(int64(-len(idle)))
	h.mu.Unlock()
	for _, cn := range idle {
		cn.close()
	}
	if t != nil {
		t.CloseIdleConnections()
	}
}

// dial returns a new connection.
func (c *Client) dial(ctx context.Context, deadline time.Time, h *host) (*conn, error) {
	ctx, cancel := context.WithDeadlineCause(ctx, deadline, ErrTimeout)
	defer cancel()
	nc, err := connect(ctx, c.config.Dial, h.key.addr, h.tls)
	if err != nil {
		return nil, err
	}
	cn := newConn(c, nc)
	c.mu.Lock()
	c.conns[cn] = struct{}{}
	c.mu.Unlock()
	return cn, nil
}

// connect opens a connection to addr, with TLS unless config is nil. A
// httptrace.ClientTrace of ctx is told of the dial, by a net.Dialer, and of the
// end of a handshake that succeeds.
func connect(ctx context.Context, dial func(context.Context, string, string) (net.Conn, error), addr string, config *tls.Config) (net.Conn, error) {
	nc, err := dial(ctx, "tcp", addr)
	if err != nil || config == nil {
		return nc, err
	}
	tc := tls.Client(newTap(nc), config)
	if err := tc.HandshakeContext(ctx); err != nil {
		nc.Close()
		return nil, err
	}
	if t := httptrace.ContextClientTrace(ctx); t != nil && t.TLSHandshakeDone != nil {
		t.TLSHandshakeDone(tc.ConnectionState(), nil)
	}
	return tc, nil
}
