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
	"reflect"
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
// would repeat without bound one that is answered by GOAWAY. opened is called with the connection,
// unless that speaks HTTP/2.
func (c *Client) httpTransport(h *host, opened func(*filter)) *http.Transport {
	filtered := func(nc net.Conn, err error) (net.Conn, error) {
		if err != nil {
			return nil, err
		}
		f := newFilter(nc)
		opened(f)
		return f, nil
	}
	t := &http.Transport{
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			return filtered(connect(ctx, c.config.Dial, addr, nil))
		},
		DialTLSContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			if tc, ok := ctx.Value(handoverKey{}).(*tls.Conn); ok {
				return tc, nil
			}
			nc, err := connect(ctx, c.config.Dial, addr, h.tls)
			if err == nil && nc.(*tls.Conn).ConnectionState().NegotiatedProtocol == "h2" {
				return nc, nil
			}
			return filtered(nc, err)
		},
		TLSClientConfig:        h.tls.Clone(), // for connections through a proxy
		DisableCompression:     true,
		ForceAttemptHTTP2:      true,
		MaxResponseHeaderBytes: maxSkipped,
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
// net/http takes over. If a kept connection ends without an answer, postNetHTTP makes the request again,
// once. With HTTP/2, the receiver must have said that it has not begun to process the request.
func (c *Client) postNetHTTP(ctx context.Context, deadline time.Time, h *host, t *Target, lines, body []byte, b *Buffer, cn *conn) (Answer, error) {
	ctx, cancel := context.WithDeadlineCause(ctx, deadline, ErrTimeout)
	defer cancel()
	for resent := false; ; resent = true {
		s, err := c.share(ctx, h, t, cn)
		if err != nil {
			return Answer{}, cmp.Or(context.Cause(ctx), err)
		}
		var got atomic.Bool // a byte of the answer
		a, err := c.roundTrip(ctx, h, t, s, lines, body, b, &got)
		ended := s.shared.Err() != nil || s.shared.Available() == 0
		kept := c.unshare(h, s, deadline, err == nil)
		if err == nil {
			return a, nil
		}
		refused, ok := errors.AsType[streamError](err)
		again := kept && ended && !(s.http2.Load() && begun(err)) || ok && refused.Code == refusedStream
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

// begun reports whether the receiver may have begun to process a request by HTTP/2 that failed with
// err, because the connection has ended. Many requests are in flight on such a connection, so its
// end does not mean that it was idle. If GOAWAY, or an earlier end, says that the request was not
// processed, the error of net/http has no type of its own.
func begun(err error) bool {
	return errors.Is(err, io.ErrUnexpectedEOF) || reflect.TypeOf(err) != reflect.TypeOf(io.EOF)
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
	var f *filter
	stop := func() bool { return true }
	opened := func(opened *filter) {
		f, stop = opened, context.AfterFunc(ctx, func() { opened.Close() })
	}
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
	if c.config.Proxy == nil || !t.key.secure { // else TLS is above the filter
		s.filter = f
	}
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
func (c *Client) roundTrip(ctx context.Context, h *host, t *Target, s *conn, lines, body []byte, b *Buffer, got *atomic.Bool) (Answer, error) {
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotFirstResponseByte: func() { got.Store(true) }})
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "/", bytes.NewReader(body))
	if err != nil {
		s.shared.Release()
		return Answer{}, err
	}
	req.URL, req.Host, req.Header = t.url, t.host, t.header.Clone()
	for line := range strings.Lines(string(lines)) {
		name, value, _ := strings.Cut(strings.TrimRight(line, "\r\n"), ": ")
		req.Header[name] = []string{value}
	}
	f := s.filter
	if f != nil {
		f.armed.Store(true)
	}
	resp, err := s.shared.RoundTrip(req)
	if err != nil {
		if f != nil {
			if !f.armed.Load() {
				got.Store(true) // a part of the head, of which net/http knows nothing
			}
			if failure := f.failure.Load(); failure != nil {
				err = *failure
			}
		}
		return Answer{}, err
	}
	defer resp.Body.Close()
	if n := b.in.notes; n != nil {
		n.began()
		n.Header = resp.Header.Clone()
	}
	s.http2.Store(resp.ProtoMajor == 2)
	if t.key.secure && c.config.Proxy == nil {
		h.h2.Store(resp.ProtoMajor == 2) // if it is not HTTP/2, this package makes the next request
	}
	if c.config.Proxy != nil && resp.StatusCode == http.StatusProxyAuthRequired {
		return Answer{}, ProxyError(resp.StatusCode)
	}
	a := Answer{Status: resp.StatusCode, RetryAfter: resp.Header.Get("Retry-After")}
	if f != nil && f.head.flaw != "" {
		a.Flaw = f.head.flaw
		return a, nil
	}
	if a.Status == http.StatusSwitchingProtocols {
		return a, nil // do not read the body: it is the connection, which ctx does not close
	}
	b.in.begin(resp.Body)
	a.Kept, err = b.in.body(b.kept[:0], MaxBody)
	switch {
	case err == nil || err == io.EOF:
		return a, nil
	case f != nil && f.failure.Load() == nil && ctx.Err() == nil:
		a.Flaw = errChunk // the error is one of chunks or trailers
		return a, nil
	}
	return Answer{}, err
}

// A filter is a connection with HTTP/1.1 of net/http. It reads the headers of answers as this package
// does, and passes them on in a form that net/http accepts: net/http would refuse a flawed header, and
// with it the status.
type filter struct {
	net.Conn
	in      reader
	out     []byte      // what net/http reads before the rest of in
	armed   atomic.Bool // a request has begun, so that the next bytes are the head of an answer
	failure atomic.Pointer[error]

	// head is that of the latest answer. It is set before net/http reads the answer.
	head answerHead
}

func newFilter(nc net.Conn) *filter {
	f := &filter{Conn: nc}
	f.in.begin(nc)
	return f
}

// Read is called by one goroutine of net/http, which waits in it already when a request begins.
func (f *filter) Read(p []byte) (n int, err error) {
	if len(f.out) == 0 && f.head.flaw != "" {
		return 0, io.EOF
	}
	if len(f.out) == 0 {
		_, err = f.in.buf.Peek(1)
	}
	if err == nil && f.armed.CompareAndSwap(true, false) {
		err = f.readHead()
	}
	if err != nil {
		f.failure.Store(&err)
		return 0, err
	}
	if len(f.out) > 0 {
		n = copy(p, f.out)
		f.out = f.out[n:]
		return n, nil
	}
	return f.in.buf.Read(p)
}

// readHead reads the head of an answer, and sets f.head and f.out.
func (f *filter) readHead() (err error) {
	f.in.budget, f.in.notes = maxSkipped, new(Notes)
	if f.head, err = f.in.finalHead(); err != nil {
		return err
	}
	header := f.in.notes.Header
	if f.head.flaw != "" {
		for _, framing := range []string{"Content-Length", "Transfer-Encoding", "Trailer"} {
			header.Del(framing)
		}
		header.Set("Content-Length", "0")
	}
	if f.head.flaw != "" || f.head.doubtful {
		header.Set("Connection", "close")
	}
	if f.head.retryAfter != "" {
		header.Set("Retry-After", f.head.retryAfter)
	}
	out := bytes.NewBuffer(f.out[:0])
	fmt.Fprintf(out, "HTTP/1.%d %d \r\n", f.head.minor, f.head.status)
	header.Write(out)
	out.WriteString("\r\n")
	f.out = out.Bytes()
	return nil
}
