package wire

import (
	"bytes"
	"cmp"
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

// protocols returns the protocols of net/http, for TLS handshakes. They do not include HTTP/2 if
// GODEBUG=http2client=0 has switched it off.
func protocols() []string {
	t := http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: new(tls.Config)}
	t.CloseIdleConnections() // sets NextProtos
	return t.TLSClientConfig.NextProtos
}

// handoverKey is the context key of an *atomic.Pointer[tls.Conn]: a connection that this package
// has dialled, and that net/http's transport may take.
type handoverKey struct{}

// byNetHTTP reports whether net/http makes the requests to t.
func (c *Client) byNetHTTP(h *host, t *Target) bool {
	return t.NetHTTP || c.config.Proxy != nil || h.h2.Load()
}

// httpTransport returns the http.Transport of h, and creates it if needed.
func (client *Client) httpTransport(h *host) *http.Transport {
	client.mu.Lock()
	defer client.mu.Unlock()
	if h.transport != nil {
		return h.transport
	}
	c := &client.config
	// If a request gives up while net/http dials for it, net/http continues the dial for a later
	// request. So the dial has a timeout of its own: otherwise sockets to a receiver that does not
	// answer would pile up.
	connect := func(ctx context.Context, addr string, config *tls.Config) (net.Conn, error) {
		ctx, cancel := context.WithTimeoutCause(ctx, c.Timeout, ErrTimeout)
		defer cancel()
		defer context.AfterFunc(c.Context, cancel)()
		return connect(ctx, c.Dial, addr, config)
	}
	h.transport = &http.Transport{
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			nc, err := connect(ctx, addr, nil)
			if err != nil || c.Proxy == nil {
				return nc, err
			}
			closes := func() { nc.Close() }
			return &proxied{nc, time.AfterFunc(c.Timeout, closes), context.AfterFunc(c.Context, closes)}, nil
		},
		DialTLSContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			if dialled, ok := ctx.Value(handoverKey{}).(*atomic.Pointer[tls.Conn]); ok {
				if tc := dialled.Swap(nil); tc != nil {
					return tc, nil
				}
			}
			return connect(ctx, addr, h.tls)
		},
		TLSClientConfig:        h.tls.Clone(), // for connections through a proxy
		DisableCompression:     true,
		ForceAttemptHTTP2:      true,
		MaxIdleConns:           c.MaxIdle,
		MaxIdleConnsPerHost:    c.MaxIdle,
		IdleConnTimeout:        idleTimeout,
		MaxResponseHeaderBytes: MaxHeader,
		// All requests share one HTTP/2 connection, so a dead one must be detected.
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
		h.transport.DialTLSContext = nil // through a proxy, net/http makes the TLS handshake itself
	}
	return h.transport
}

// A ProxyError is the status with which a proxy refuses to pass on a request: any but 200 in answer
// to a CONNECT, or 407, by which the proxy asks for credentials.
type ProxyError int

func (e ProxyError) Error() string {
	return strings.TrimSpace(fmt.Sprintf("the proxy answered %d %s", int(e), http.StatusText(int(e))))
}

// A proxied is a connection to the proxy. Before its first request, net/http sends a CONNECT to the
// proxy and makes the TLS handshake with the receiver. net/http continues with both even if the
// request has ended. So a proxied closes itself when Config.Context ends, and after Config.Timeout
// if no request uses it by then.
type proxied struct {
	net.Conn
	limit *time.Timer // closes the connection
	stop  func() bool // keeps the end of the context from closing the connection
}

func (p *proxied) Close() error {
	p.limit.Stop()
	p.stop()
	return p.Conn.Close()
}

// postNetHTTP makes a request with net/http. If cn is not nil, it is a new connection that net/http
// may take over.
func (c *Client) postNetHTTP(ctx context.Context, deadline time.Time, h *host, t *Target, lines, body []byte, b *Buffer, cn *conn) (Answer, error) {
	ctx, cancel := context.WithDeadlineCause(ctx, deadline, ErrTimeout)
	defer cancel()
	if cn != nil {
		cn.stop()
		var dialled atomic.Pointer[tls.Conn]
		dialled.Store(cn.nc.(*tls.Conn))
		ctx = context.WithValue(ctx, handoverKey{}, &dialled)
		defer func() {
			if tc := dialled.Swap(nil); tc != nil {
				tc.Close() // net/http has used another connection
			}
		}()
	}
	var connected, begun atomic.Bool // the request has a connection; its header was written
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(i httptrace.GotConnInfo) {
			connected.Store(true)
			nc := i.Conn
			if tc, ok := nc.(*tls.Conn); ok {
				nc = tc.NetConn()
			}
			if p, ok := nc.(*proxied); ok {
				p.limit.Stop() // from now on the deadline of the request applies
			}
		},
		WroteHeaders: func() { begun.Store(true) },
	})
	req, err := http.NewRequestWithContext(traced, http.MethodPost, "/", bytes.NewReader(body))
	if err != nil {
		return Answer{}, err
	}
	req.URL, req.Host, req.Header = t.url, t.host, t.header.Clone()
	// This key makes http.Transport repeat the request if a kept connection turns out to be closed.
	// A key without a value is not sent.
	if len(req.Header["Idempotency-Key"]) == 0 {
		req.Header["Idempotency-Key"] = nil
	}
	for line := range strings.Lines(string(lines)) {
		name, value, _ := strings.Cut(strings.TrimRight(line, "\r\n"), ": ")
		req.Header[name] = []string{value}
	}
	transport := c.httpTransport(h)
	resp, err := transport.RoundTrip(req)
	if err != nil && connected.Load() && !begun.Load() && ctx.Err() == nil {
		// net/http has used a spare connection that had already ended, and does not repeat the
		// request itself.
		req.Body, _ = req.GetBody()
		resp, err = transport.RoundTrip(req)
	}
	if err != nil {
		return Answer{}, cmp.Or(context.Cause(ctx), err)
	}
	defer resp.Body.Close()
	if n := b.in.notes; n != nil {
		n.began()
		n.Header = resp.Header.Clone()
	}
	if t.key.secure && c.config.Proxy == nil {
		h.h2.Store(resp.ProtoMajor == 2) // if it is not HTTP/2, this package makes the next request
	}
	if c.config.Proxy != nil && resp.StatusCode == http.StatusProxyAuthRequired {
		return Answer{}, ProxyError(resp.StatusCode)
	}
	a := Answer{Status: resp.StatusCode, RetryAfter: resp.Header.Get("Retry-After")}
	if a.Status == http.StatusSwitchingProtocols {
		return a, nil // do not read the body: it is the connection, which ctx does not close
	}
	b.in.begin(resp.Body)
	if a.Kept, err = b.in.body(b.kept[:0], MaxBody); err != nil && err != io.EOF {
		return Answer{}, cmp.Or(context.Cause(ctx), err)
	}
	return a, nil
}
