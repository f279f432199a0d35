package wire

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
)

// speaksHTTP2 reports whether net/http speaks HTTP/2, which the setting
// GODEBUG=http2client=0 switches off.
func speaksHTTP2() bool {
	t := http.Transport{ForceAttemptHTTP2: true}
	t.CloseIdleConnections() // sets TLSNextProto
	return t.TLSNextProto["h2"] != nil
}

// A handover passes a connection that this package has made to net/http's transport.
type handover struct{ conn atomic.Pointer[tls.Conn] }

type handoverKey struct{}

// byNetHTTP reports whether net/http makes the requests of t.
func (c *Client) byNetHTTP(h *host, t *Target) bool {
	return t.NetHTTP || t.foreign || c.config.Proxy != nil || h.h2.Load()
}

// httpTransport returns the transport of h.
func (client *Client) httpTransport(h *host) *http.Transport {
	client.mu.Lock()
	defer client.mu.Unlock()
	if h.transport != nil {
		return h.transport
	}
	c := &client.config
	// net/http goes on dialling for the next request when a request has ended. A dial has
	// a timeout of its own. Otherwise sockets to a receiver that does not answer would
	// pile up.
	connect := func(ctx context.Context, addr string, config *tls.Config) (net.Conn, error) {
		ctx, cancel := context.WithTimeoutCause(ctx, c.Timeout, ErrTimeout)
		defer cancel()
		defer context.AfterFunc(c.Context, cancel)()
		return connect(ctx, c.Dial, addr, config)
	}
	h.transport = &http.Transport{
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			nc, err := connect(ctx, addr, nil)
			if err == nil && c.Proxy != nil {
				nc = newProxied(c, nc)
			}
			return nc, err
		},
		DialTLSContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			if o, ok := ctx.Value(handoverKey{}).(*handover); ok {
				if tc := o.conn.Swap(nil); tc != nil {
					return tc, nil
				}
			}
			config := h.tls
			if addr != h.key.addr { // a name in another script, as it is spelled on the wire
				config = config.Clone()
				config.ServerName, _, _ = net.SplitHostPort(addr)
			}
			return connect(ctx, addr, config)
		},
		TLSClientConfig:        client.baseTLS(h.key), // behind a proxy
		DisableCompression:     true,
		ForceAttemptHTTP2:      true,
		MaxIdleConns:           c.MaxIdle,
		MaxIdleConnsPerHost:    c.MaxIdle,
		IdleConnTimeout:        idleTimeout,
		MaxResponseHeaderBytes: MaxHeader,
		// All requests share an HTTP/2 connection, so a dead one must be noticed.
		HTTP2: &http.HTTP2Config{SendPingTimeout: c.Timeout, PingTimeout: c.Timeout, WriteByteTimeout: c.Timeout},
	}
	if c.Proxy != nil {
		h.transport.Proxy = http.ProxyURL(c.Proxy)
		h.transport.OnProxyConnectResponse = func(_ context.Context, _ *url.URL, _ *http.Request, resp *http.Response) error {
			if resp.StatusCode != http.StatusOK {
				return ProxyError(resp.StatusCode)
			}
			return nil
		}
		h.transport.DialTLSContext = nil // the TLS is net/http's own
	}
	return h.transport
}

// A ProxyError is the status with which a proxy refuses to pass a request on: every answer
// to CONNECT other than 200, and 407, which is about the credentials for the proxy.
type ProxyError int

func (e ProxyError) Error() string {
	return strings.TrimSpace(fmt.Sprintf("the proxy answered %d %s", int(e), http.StatusText(int(e))))
}

// A proxied is a connection to the proxy. Before the first request, net/http talks to the
// proxy, and through it shakes hands with the receiver. It goes on even if the request has
// ended. So a connection that no request got is closed after Config.Timeout, or when
// Config.Context ends.
type proxied struct {
	net.Conn
	limit *time.Timer // closes it
	stop  func() bool // no longer closes it with the context
}

func newProxied(c *Config, nc net.Conn) *proxied {
	closes := func() { nc.Close() }
	return &proxied{nc, time.AfterFunc(c.Timeout, closes), context.AfterFunc(c.Context, closes)}
}

func (p *proxied) Close() error {
	p.limit.Stop()
	p.stop()
	return p.Conn.Close()
}

// A sending records how far a request of net/http has come.
type sending struct{ connected, begun atomic.Bool }

// trace returns a context for the request. It also tells a proxied connection when the
// request gets it: from then on the request's own deadline holds.
func (s *sending) trace(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(i httptrace.GotConnInfo) {
			s.connected.Store(true)
			nc := i.Conn
			if tc, ok := nc.(*tls.Conn); ok {
				nc = tc.NetConn()
			}
			if p, ok := nc.(*proxied); ok {
				p.limit.Stop()
			}
		},
		WroteHeaders: func() { s.begun.Store(true) },
	})
}

// unsent reports whether the request got a connection that had already ended.
func (s *sending) unsent() bool { return s.connected.Load() && !s.begun.Load() }

// postNetHTTP is post by net/http. It hands cn over, unless that is nil.
func (c *Client) postNetHTTP(ctx context.Context, deadline time.Time, h *host, t *Target, lines, body []byte, b *Buffer, cn *conn) (Answer, error) {
	ctx, cancel := context.WithDeadlineCause(ctx, deadline, ErrTimeout)
	defer cancel()
	if cn != nil {
		cn.forget()
		var o handover
		o.conn.Store(cn.nc.(*tls.Conn))
		ctx = context.WithValue(ctx, handoverKey{}, &o)
		defer func() {
			if tc := o.conn.Swap(nil); tc != nil {
				tc.Close() // net/http has used another connection
			}
		}()
	}
	var first sending
	req, err := http.NewRequestWithContext(first.trace(ctx), http.MethodPost, "/", bytes.NewReader(body))
	if err != nil {
		return Answer{}, err
	}
	req.URL, req.Host, req.Header = t.url, t.url.Host, t.header.Clone()
	// With this key, http.Transport makes a request again if a kept connection turns out
	// to be closed. It does not send a key without values.
	if len(req.Header["Idempotency-Key"]) == 0 {
		req.Header["Idempotency-Key"] = nil
	}
	for line := range strings.Lines(string(lines)) {
		name, value, _ := strings.Cut(strings.TrimRight(line, "\r\n"), ": ")
		req.Header[name] = []string{value}
	}
	transport := c.httpTransport(h)
	resp, err := transport.RoundTrip(req)
	if err != nil && first.unsent() && ctx.Err() == nil {
		// net/http gives a spare connection to the next request. If that connection
		// has ended since, it does not make the request again.
		req.Body, _ = req.GetBody()
		resp, err = transport.RoundTrip(req)
	}
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return Answer{}, err
	}
	defer resp.Body.Close()
	if n := b.in.notes; n != nil {
		n.began()
		n.Header = resp.Header.Clone()
	}
	if t.key.secure && c.config.Proxy == nil {
		h.h2.Store(resp.ProtoMajor == 2) // if not, this package makes the next request
	}
	if c.config.Proxy != nil && resp.StatusCode == http.StatusProxyAuthRequired {
		return Answer{}, ProxyError(resp.StatusCode)
	}
	a := Answer{Status: resp.StatusCode, RetryAfter: resp.Header.Get("Retry-After")}
	if a.Status == http.StatusSwitchingProtocols {
		return a, nil // the body is the connection, which ctx does not end
	}
	b.in.begin(resp.Body)
	if a.Kept, err = b.in.body(b.kept[:0], MaxBody); err != nil && err != io.EOF {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return Answer{}, err
	}
	return a, nil
}
