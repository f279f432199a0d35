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

// What is not HTTP/1.1 straight to a name in ASCII is net/http's: receivers that
// choose HTTP/2 in the TLS handshake, hosts in other scripts, and proxies. The
// first connection to a receiver is made here, and handed over if it turns out to
// be HTTP/2.

// speaksHTTP2 reports whether net/http speaks HTTP/2, which the setting
// GODEBUG=http2client=0 switches off.
func speaksHTTP2() bool {
	t := http.Transport{ForceAttemptHTTP2: true}
	t.CloseIdleConnections() // sets TLSNextProto
	return t.TLSNextProto["h2"] != nil
}

// A handover is a connection on its way to the transport.
type handover struct{ conn atomic.Pointer[tls.Conn] }

type handoverKey struct{}

// httpTransport returns the transport of h.
func (h *host) httpTransport() *http.Transport {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.transport != nil {
		return h.transport
	}
	c := &h.client.config
	// net/http goes on dialling after the request has ended, for the benefit of
	// the next one. So a dial has a timeout of its own, or sockets would pile up
	// towards a receiver that does not answer.
	connect := func(ctx context.Context, addr string, config *tls.Config) (net.Conn, error) {
		ctx, cancel := context.WithTimeoutCause(ctx, c.Timeout, ErrTimeout)
		defer cancel()
		defer context.AfterFunc(c.Context, cancel)()
		return connect(ctx, c.Dial, addr, config)
	}
	h.transport = &http.Transport{
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			return connect(ctx, addr, nil)
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
		TLSClientConfig:        h.client.baseTLS(h.key), // behind a proxy
		DisableCompression:     true,
		ForceAttemptHTTP2:      true,
		MaxIdleConns:           c.MaxIdle,
		MaxIdleConnsPerHost:    c.MaxIdle,
		IdleConnTimeout:        idleTimeout,
		MaxResponseHeaderBytes: MaxHeader,
		// A connection that is dead has to be found out, because all requests
		// share it.
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
		h.transport.DialTLSContext = nil
		dial := h.transport.DialContext
		h.transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			nc, err := dial(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return newProxied(c, nc), nil
		}
	}
	return h.transport
}

// A ProxyError is the status of a proxy that has not passed a request on: of any
// answer to CONNECT but 200, and 407, which is about the credentials for the proxy.
type ProxyError int

func (e ProxyError) Error() string {
	return strings.TrimSpace(fmt.Sprintf("the proxy answered %d %s", int(e), http.StatusText(int(e))))
}

// A proxied is a connection to the proxy. net/http talks to the proxy, and by TLS to
// the receiver, before the first request, and goes on when that has ended. So until
// the connection is handed to a request it is closed after the time of one, and when
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

// withEndless returns a context for requests through a proxy. It ends the time limit
// of a connection that is handed to a request, which has a deadline of its own.
func withEndless(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) {
		nc := i.Conn
		if tc, ok := nc.(*tls.Conn); ok {
			nc = tc.NetConn()
		}
		if p, ok := nc.(*proxied); ok {
			p.limit.Stop()
		}
	}})
}

// A sending tells how far a request has come.
type sending struct{ connected, begun atomic.Bool }

// trace returns a context for the request.
func (s *sending) trace(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn:      func(httptrace.GotConnInfo) { s.connected.Store(true) },
		WroteHeaders: func() { s.begun.Store(true) },
	})
}

// unsent reports whether the connection that the request was given turned out to have ended.
func (s *sending) unsent() bool { return s.connected.Load() && !s.begun.Load() }

// postNetHTTP is post by net/http. It hands cn over, unless that is nil.
func (c *Client) postNetHTTP(ctx context.Context, deadline time.Time, h *host, t *Target, lines, body []byte, b *Buffer, cn *conn) (Answer, error) {
	ctx, cancel := context.WithDeadlineCause(ctx, deadline, ErrTimeout)
	defer cancel()
	if cn != nil && !cn.http2() {
		cn.close() // it is from before the receiver spoke HTTP/2
	} else if cn != nil {
		cn.forget()
		var o handover
		o.conn.Store(cn.nc.(*tls.Conn))
		ctx = context.WithValue(ctx, handoverKey{}, &o)
		defer func() {
			if tc := o.conn.Swap(nil); tc != nil {
				tc.Close() // another was there meanwhile
			}
		}()
	}
	if c.config.Proxy != nil {
		ctx = withEndless(ctx)
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	reader, _ := open()
	req := &http.Request{
		Method:        http.MethodPost,
		URL:           t.url,
		Host:          t.url.Host,
		Proto:         "HTTP/1.1",
		ProtoMajor:    1,
		ProtoMinor:    1,
		Header:        t.header.Clone(),
		Body:          reader,
		GetBody:       open,
		ContentLength: int64(len(body)),
	}
	// An empty list is not sent. It tells http.Transport that a request may be
	// made again when a kept connection turns out to be closed.
	if len(req.Header["Idempotency-Key"]) == 0 {
		req.Header["Idempotency-Key"] = nil
	}
	for line := range strings.Lines(string(lines)) {
		name, value, _ := strings.Cut(strings.TrimRight(line, "\r\n"), ": ")
		req.Header[name] = []string{value}
	}
	var first sending
	resp, err := h.httpTransport().RoundTrip(req.WithContext(first.trace(ctx)))
	if err != nil && first.unsent() && ctx.Err() == nil {
		// net/http keeps a connection that it made to spare, and that has ended since, for
		// whoever asks next, and does not make his request again.
		req.Body, _ = open()
		resp, err = h.httpTransport().RoundTrip(req.WithContext(ctx))
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
		h.h2.Store(resp.ProtoMajor == 2) // if no longer, the next is ours again
	}
	if c.config.Proxy != nil && resp.StatusCode == http.StatusProxyAuthRequired {
		return Answer{}, ProxyError(resp.StatusCode)
	}
	a := Answer{Status: resp.StatusCode, RetryAfter: resp.Header.Get("Retry-After")}
	if a.Status == http.StatusSwitchingProtocols {
		return a, nil // the body is the connection, which ctx does not end
	}
	b.in.begin(resp.Body)
	if a.Kept, err = b.in.rest(b.kept[:0]); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return Answer{}, err
	}
	return a, nil
}
