package wire

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
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

// handoverKey is the context key of a *tls.Conn: a connection that this package has dialled, and that
// net/http takes.
type handoverKey struct{}

// byNetHTTP reports whether net/http makes the requests to t.
func (c *Client) byNetHTTP(h *host, t *Target) bool {
	return t.NetHTTP || c.config.Proxy != nil || h.h2.Load()
}

// httpTransport returns an http.Transport for one connection of net/http to h. It gets no request: it
// would repeat without bound one that is answered by GOAWAY. opened is called with the connection
// below TLS.
func (c *Client) httpTransport(h *host, opened func(net.Conn)) *http.Transport {
	t := &http.Transport{
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			nc, err := connect(ctx, c.config.Dial, addr, nil)
			if err == nil {
				opened(nc)
			}
			return nc, err
		},
		DialTLSContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			if tc, ok := ctx.Value(handoverKey{}).(*tls.Conn); ok {
				return tc, nil
			}
			return connect(ctx, c.config.Dial, addr, h.tls)
		},
		TLSClientConfig:        h.tls.Clone(), // for connections through a proxy
		DisableCompression:     true,
		ForceAttemptHTTP2:      true,
		MaxResponseHeaderBytes: MaxHeader,
		// Many requests share one HTTP/2 connection, so a dead one must be detected.
		HTTP2: &http.HTTP2Config{SendPingTimeout: c.config.Timeout, PingTimeout: c.config.Timeout, WriteByteTimeout: c.config.Timeout},
	}
	if c.config.Proxy != nil {
		t.Proxy = http.ProxyURL(c.config.Proxy)
		t.OnProxyConnectResponse = func(_ context.Context, _ *url.URL, _ *http.Request, resp *http.Response) error {
			if resp.StatusCode != http.StatusOK {
				return ProxyError(resp.StatusCode)
			}
			return nil
		}
		t.DialTLSContext = nil // through a proxy, net/http makes the TLS handshake itself
	}
	return t
}

// A ProxyError is the status with which a proxy refuses to pass on a request: any but 200 in answer
// to a CONNECT, or 407, by which the proxy asks for credentials.
type ProxyError int

func (e ProxyError) Error() string {
	return strings.TrimSpace(fmt.Sprintf("the proxy answered %d %s", int(e), http.StatusText(int(e))))
}

// postNetHTTP makes a request with net/http. If cn is not nil, it is a new connection with HTTP/2, which
// net/http takes over. If a kept connection ends without an answer, or the receiver refuses the stream,
// postNetHTTP makes the request again, once.
func (c *Client) postNetHTTP(ctx context.Context, deadline time.Time, h *host, t *Target, lines, body []byte, b *Buffer, cn *conn) (Answer, error) {
	ctx, cancel := context.WithDeadlineCause(ctx, deadline, ErrTimeout)
	defer cancel()
	for resent := false; ; resent = true {
		s, err := c.share(ctx, h, t, cn)
		if err != nil {
			return Answer{}, cmp.Or(context.Cause(ctx), err)
		}
		var got atomic.Bool // a byte of the answer
		a, err := c.roundTrip(ctx, h, t, s.shared, lines, body, b, &got)
		ended := s.shared.Err() != nil || s.shared.Available() == 0
		kept := c.unshare(h, s, deadline, err == nil)
		if err == nil {
			return a, nil
		}
		refused, ok := errors.AsType[streamError](err)
		again := kept && ended || ok && refused.Code == refusedStream
		if ended && !got.Load() {
			err = fmt.Errorf("%w: %w", io.ErrUnexpectedEOF, err)
		}
		if resent || !again || got.Load() || ctx.Err() != nil {
			return Answer{}, cmp.Or(context.Cause(ctx), err)
		}
		c.resent.Add(1)
		cn = nil
	}
}

// refusedStream is the code of a stream that the receiver has not processed (RFC 9113, section 8.7).
const refusedStream = 7

// A streamError has the fields of the error that net/http returns for an HTTP/2 stream that the
// receiver has reset, so that errors.As finds it (go.dev/issue/53896).
type streamError struct {
	StreamID uint32
	Code     uint32
	Cause    error
}

func (e streamError) Error() string { return "the receiver has reset the stream" }

// share returns a connection of net/http to h with room for a request, a new one if there is none.
// New HTTP/2 connections are made one at a time, because all requests that wait can share one.
func (c *Client) share(ctx context.Context, h *host, t *Target, cn *conn) (*conn, error) {
	if cn != nil {
		cn.stop()
	}
	var dialled chan struct{}
	for dialled == nil {
		c.mu.Lock()
		for _, s := range h.shared {
			if s.key == t.key && s.shared.Reserve() == nil {
				if s.users++; s.users == 1 {
					c.idle.remove(s)
				}
				c.mu.Unlock()
				if cn != nil {
					cn.interrupt()
				}
				return s, nil
			}
		}
		wait := h.dialling
		if wait == nil || cn != nil || !h.h2.Load() {
			dialled = make(chan struct{})
			h.dialling = dialled
		}
		c.mu.Unlock()
		if dialled == nil {
			select {
			case <-wait:
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
	}
	scheme := "http"
	if t.key.secure {
		scheme = "https"
	}
	if cn != nil {
		ctx = context.WithValue(ctx, handoverKey{}, cn.nc)
	}
	// net/http sets deadlines while it talks to a proxy, which not all connections have.
	stop := func() bool { return true }
	opened := func(nc net.Conn) { stop = context.AfterFunc(ctx, func() { nc.Close() }) }
	shared, err := c.httpTransport(h, opened).NewClientConn(ctx, scheme, t.key.addr)
	if !stop() && err == nil {
		shared.Close()
		err = context.Cause(ctx)
	}
	if err == nil {
		err = shared.Reserve()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	close(dialled)
	if h.dialling == dialled {
		h.dialling = nil
	}
	if err != nil {
		return nil, err
	}
	s := &conn{client: c, shared: shared, key: t.key, users: 1, host: h}
	h.shared = append(h.shared, s)
	return s, nil
}

// unshare ends a request on s, and closes s if it is idle and has ended. It reports whether s has
// served a request.
func (c *Client) unshare(h *host, s *conn, deadline time.Time, answered bool) (kept bool) {
	var old *conn
	c.mu.Lock()
	kept = s.kept || answered
	s.kept, s.used = kept, deadline
	s.users--
	switch {
	case s.users > 0:
	case s.shared.Err() != nil || c.config.Context.Err() != nil:
		h.shared = slices.DeleteFunc(h.shared, func(cn *conn) bool { return cn == s })
		old = s
	default:
		old = c.addIdle(s)
	}
	c.mu.Unlock()
	if old != nil {
		old.close()
	}
	return kept
}

// roundTrip makes one request on a connection of net/http. It sets got once a byte of the answer has come.
func (c *Client) roundTrip(ctx context.Context, h *host, t *Target, s *http.ClientConn, lines, body []byte, b *Buffer, got *atomic.Bool) (Answer, error) {
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotFirstResponseByte: func() { got.Store(true) }})
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "/", bytes.NewReader(body))
	if err != nil {
		s.Release()
		return Answer{}, err
	}
	req.URL, req.Host, req.Header = t.url, t.host, t.header.Clone()
	for line := range strings.Lines(string(lines)) {
		name, value, _ := strings.Cut(strings.TrimRight(line, "\r\n"), ": ")
		req.Header[name] = []string{value}
	}
	resp, err := s.RoundTrip(req)
	if err != nil {
		return Answer{}, err
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
		return Answer{}, err
	}
	return a, nil
}
