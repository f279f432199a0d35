package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/hookferry/analytics/internal/retryafter"
	"github.com/hookferry/analytics/signature"
)

const (
	maxAnswer       = 64 << 10 // bytes read of an answer's body
	maxAnswerHeader = 64 << 10 // bytes of an answer's header
	maxKept         = 256      // bytes kept of an answer or an error
)

// newTransport returns a transport of a forwarder, for the destinations with
// the TLS settings own. Redirects, cookies and proxies of the environment are
// http.Client's and http.DefaultTransport's; RoundTrip knows none. open ends
// with the forwarder.
func newTransport(c *Config, own *TLS, g *guard, open context.Context) *http.Transport {
	dial := g.dial
	if c.Proxy != nil {
		dial = new(net.Dialer).DialContext
	}
	if c.DialContext != nil {
		dial = c.DialContext
	}
	t := &http.Transport{
		// net/http goes on dialling when the request has ended, for the next
		// one: the time of an attempt has to be set here once more, or an
		// address that does not answer collects sockets.
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			ctx, cancel := context.WithTimeoutCause(ctx, c.Timeout, errAttemptTimeout)
			defer cancel()
			defer context.AfterFunc(open, cancel)()
			return dial(ctx, network, addr)
		},
		TLSHandshakeTimeout:    c.Timeout,
		TLSClientConfig:        own.config(c.TLSClientConfig),
		DisableCompression:     true,
		ForceAttemptHTTP2:      true,
		MaxIdleConns:           2 * c.MaxInFlight,
		MaxIdleConnsPerHost:    c.MaxInFlight,
		IdleConnTimeout:        90 * time.Second,
		MaxResponseHeaderBytes: maxAnswerHeader,
		// An HTTP/2 connection that is dead has to be found out, because all
		// requests share it.
		HTTP2: &http.HTTP2Config{SendPingTimeout: c.Timeout, PingTimeout: c.Timeout, WriteByteTimeout: c.Timeout},
	}
	if c.Proxy != nil {
		t.Proxy = http.ProxyURL(c.Proxy)
	}
	t.TLSClientConfig.MinVersion = max(t.TLSClientConfig.MinVersion, tls.VersionTLS12)
	return t
}

// A result is how one request to one endpoint ended.
type result struct {
	outcome    outcome
	retryAfter time.Duration
	attempt    Attempt // filled in unless delivered
}

// A sender makes requests, one at a time.
type sender struct {
	buf []byte // of the signature, then of the answer's beginning
}

func newSender() *sender {
	return &sender{buf: make([]byte, 0, 4<<10)}
}

// send posts the body of the delivery id to e, as part of the attempt number
// try. It ends with ctx.
func (s *sender) send(ctx context.Context, id string, body []byte, try int, e *endpoint) result {
	start := time.Now()
	res := s.roundTrip(ctx, start, id, body, e)
	if res.outcome != delivered {
		res.attempt.At = start.UTC()
		res.attempt.Took = time.Since(start)
		res.attempt.Try = try
		res.attempt.Endpoint = e.name
	}
	return res
}

// roundTrip makes the request and reads the answer to its end.
func (s *sender) roundTrip(ctx context.Context, now time.Time, id string, body []byte, e *endpoint) result {
	p := e.post()
	resp, err := e.transport.RoundTrip(s.request(ctx, p, now, id, body, e))
	if err != nil {
		return failed(ctx, e, err)
	}
	var n int
	if resp.StatusCode >= 200 {
		n, err = s.drain(resp.Body)
	} // else it is 101, and the body is the connection, which ctx does not end
	resp.Body.Close()
	if err != nil {
		return failed(ctx, e, err)
	}
	e.recycle(p)
	out, reason := statusOutcome(resp.StatusCode)
	if out == delivered {
		return result{}
	}
	res := result{outcome: out, attempt: Attempt{
		Status: resp.StatusCode,
		Reason: reason,
		Answer: e.clean(string(s.buf[:n])),
	}}
	if v := resp.Header.Get("Retry-After"); v != "" && out == retryable {
		res.retryAfter, _ = retryafter.Parse(v, time.Now())
	}
	return res
}

// drain reads body to its end, or to maxAnswer bytes, so that the connection
// can be used again. The first n bytes of it, at most maxKept, stay in s.buf.
func (s *sender) drain(body io.Reader) (n int, err error) {
	s.buf = s.buf[:cap(s.buf)]
	for total := 0; total < maxAnswer; {
		m, err := body.Read(s.buf[n:])
		total += m
		n = min(n+m, maxKept)
		if err == io.EOF {
			break
		}
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// failed is the result of a request without a whole answer.
func failed(ctx context.Context, e *endpoint, err error) result {
	// The transport reports the end of the context without its cause in some
	// places, and as a closed connection in others.
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	out, reason := errorOutcome(err)
	// The URL in an error may hold secrets.
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err
	}
	return result{outcome: out, attempt: Attempt{Reason: reason, Error: e.clean(err.Error())}}
}

// request fills in p, and makes the request of it.
func (s *sender) request(ctx context.Context, p *post, now time.Time, id string, body []byte, e *endpoint) *http.Request {
	if e.signer != nil {
		s.buf = e.signer.Append(s.buf[:0], body)
		p.signature[0] = string(s.buf)
	}
	if e.standard != nil {
		p.standard, s.buf = standardHeaders(s.buf, e.standard, id, now, body)
	}
	p.data = body
	req := http.Request{
		Method:        http.MethodPost,
		URL:           e.url,
		Host:          e.url.Host,
		Proto:         "HTTP/1.1",
		ProtoMajor:    1,
		ProtoMinor:    1,
		Header:        p.header,
		Body:          p.body(),
		ContentLength: int64(len(body)),
		GetBody:       p.again,
	}
	return req.WithContext(ctx)
}

// A post is what a request to one endpoint is made of, kept from one request
// to the next.
type post struct {
	header    http.Header // the endpoint's, and the signatures
	signature []string    // in header; changed in place
	standard  [3]string   // in header; the same
	data      []byte      // of the body
	again     func() (io.ReadCloser, error)
}

// post returns a post for one request.
func (e *endpoint) post() *post {
	if p, ok := e.posts.Get().(*post); ok {
		return p
	}
	p := &post{header: e.header, signature: make([]string, 1)}
	p.again = func() (io.ReadCloser, error) { return p.body(), nil }
	if e.signer != nil || e.standard != nil {
		p.header = maps.Clone(e.header)
	}
	if e.signer != nil {
		p.header[signature.Header] = p.signature
	}
	if e.standard != nil {
		p.header[signature.StandardID] = p.standard[0:1]
		p.header[signature.StandardTimestamp] = p.standard[1:2]
		p.header[signature.StandardSignature] = p.standard[2:3]
	}
	return p
}

// body returns a new request body. A reader of our own could be used again, but
// net/http sends header and body in one packet only if it knows the reader's
// type, which saves a system call on both sides.
func (p *post) body() io.ReadCloser { return io.NopCloser(bytes.NewReader(p.data)) }

// recycle takes a post back once the body of the answer has been closed, when
// the transport no longer uses the request (http.RoundTripper).
func (e *endpoint) recycle(p *post) {
	p.data = nil
	e.posts.Put(p)
}

// clean makes a text that came from the endpoint fit to be kept and printed:
// valid UTF-8 of at most maxKept bytes, without what the endpoint was sent in
// confidence, should it send it back.
func (e *endpoint) clean(s string) string {
	for _, secret := range e.secrets {
		s = strings.ReplaceAll(s, secret, "[redacted]")
	}
	s = strings.ToValidUTF8(s[:min(len(s), maxKept)], "\uFFFD")
	for len(s) > maxKept {
		_, size := utf8.DecodeLastRuneInString(s)
		s = s[:len(s)-size]
	}
	return s
}
