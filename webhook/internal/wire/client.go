package wire

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"
)

// The bounds of an answer, in bytes.
const (
	MaxHeader = 64 << 10 // of a header that are kept, and of the lines of a chunked body
	MaxBody   = 64 << 10 // of a body that are read; the rest of a longer body is not read
	MaxKept   = 256      // of a body that are returned in Answer.Kept

	maxSkipped = 256 << 10 // of a header that are read, including interim answers
)

// ErrTimeout is returned if there is no complete answer at the deadline of the request.
var ErrTimeout = errors.New("no complete answer in time")

// A ProtocolError is returned for an answer that is not HTTP, or that exceeds a bound. If a status
// line and a whole header have come, it is not returned, but is in Answer.Flaw.
type ProtocolError string

func (e ProtocolError) Error() string { return "malformed answer: " + string(e) }

// Config configures a Client.
type Config struct {
	// Context ends all requests when it is done. They return its cause.
	Context context.Context
	// Dial opens connections. It must return when its context ends. The connections need not
	// support deadlines, but reads and writes must return when the connection is closed.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Proxy is the proxy of all requests. Nil means none.
	Proxy *url.URL
	// TLS is the configuration of connections whose Target has none of its own.
	TLS *tls.Config
	// Timeout is the time from the start of a request to its deadline. It also bounds the dials and
	// HTTP/2 pings that net/http makes without a request.
	Timeout time.Duration
	// MaxIdle bounds the idle connections. The Client closes those that have been idle the longest.
	MaxIdle int
}

// A Client makes requests. Its methods may be called concurrently.
type Client struct {
	config Config
	protos []string     // to offer in TLS handshakes
	resent atomic.Int64 // see Resent

	// mu is not held across I/O.
	mu     sync.Mutex
	hosts  map[key]*host
	idle   idleList    // of all hosts
	sweeps *time.Timer // timer of sweep; nil while there is no host
}

// New returns a Client.
func New(c Config) *Client {
	return &Client{config: c, hosts: make(map[key]*host), protos: protocols()}
}

// Close closes all connections. The caller must wait for all requests first.
func (c *Client) Close() { c.closeIdle(time.Unix(1<<60, 0)) } // later than any deadline

// Resent counts the requests that were made twice, because the kept connection had ended, or the
// receiver has refused a stream of HTTP/2. The receiver may have got some of them twice, but most only
// once.
func (c *Client) Resent() int64 { return c.resent.Load() }

// An Answer is the receiver's answer to a request.
type Answer struct {
	// Status is 200 to 999, or 101.
	Status int
	// RetryAfter is the value of the header Retry-After.
	RetryAfter string
	// Kept is the beginning of the body, up to MaxKept bytes, valid until the Buffer is used again.
	Kept []byte
	// Flaw says what is wrong with the header, or with the framing of the body, if anything is. The
	// status counts nevertheless, because the receiver has had the request. The Client does not read
	// the rest of the answer, and closes the connection.
	Flaw ProtocolError

	closing bool // the receiver closes the connection after this answer
}

// A Buffer holds a request and the beginning of its answer. It serves one request after another.
// Between requests it keeps at most 48 KB: 4 KB for the answer, and the rest for the largest
// request that is written at once. It must not be copied after its first use.
type Buffer struct {
	out  []byte
	in   reader
	kept [MaxKept]byte
}

// Note makes all further requests with b record details of their answers in n.
func (b *Buffer) Note(n *Notes) { b.in.notes = n }

// Post posts body to t, and reads the answer to its end or to MaxBody. lines are header lines for
// this request, each with its CRLF. Post does not change body and lines. The caller may reuse them
// once Post has returned, unless net/http made the request: net/http may still read them.
//
// The whole request, from the dial to the end of the answer, ends at deadline or with
// ctx, whichever is first. Watching a ctx costs something, unless ctx is Config.Context
// itself. Post returns the cause of ctx, ErrTimeout, a ProtocolError, or the error of the
// dial, the TLS handshake or the connection.
func (c *Client) Post(ctx context.Context, deadline time.Time, t *Target, lines, body []byte, b *Buffer) (Answer, error) {
	a, err := c.post(ctx, deadline, t, lines, body, b)
	b.in.src = nil
	if err == nil {
		return a, nil
	}
	if cause := cmp.Or(context.Cause(ctx), context.Cause(c.config.Context)); cause != nil {
		return Answer{}, cause
	}
	if !time.Now().Before(deadline) { // the error is that of a connection that was closed at the deadline
		return Answer{}, ErrTimeout
	}
	return Answer{}, err
}

func (c *Client) post(ctx context.Context, deadline time.Time, t *Target, lines, body []byte, b *Buffer) (Answer, error) {
	h, cn := c.acquire(t)
	var keep *conn
	defer func() { c.release(h, deadline, keep) }()
	if cn == nil && c.byNetHTTP(h, t) { // acquire returns no connection to a host of net/http
		return c.postNetHTTP(ctx, deadline, h, t, lines, body, b, nil)
	}
	b.out = t.appendHead(b.out[:0], lines, len(body))
	rest := body
	if len(b.out)+len(body) <= maxInline { // two writes would cost a third more than one
		b.out = append(b.out, body...)
		rest = nil
	}
	for {
		if cn == nil {
			var err error
			if cn, err = c.dial(ctx, deadline, h); err != nil {
				return Answer{}, err
			}
			if tc, ok := cn.nc.(*tls.Conn); ok && tc.ConnectionState().NegotiatedProtocol == "h2" {
				h.h2.Store(true)
				return c.postNetHTTP(ctx, deadline, h, t, lines, body, b, cn)
			}
		}
		a, ok, err := cn.exchange(ctx, deadline, b, rest)
		if ok {
			keep = cn
			return a, nil
		}
		cn.abandon()
		if err == errStale {
			c.mu.Lock()
			cn = c.pop(h) // nothing was written, so another connection may send the request
			c.mu.Unlock()
			continue
		}
		// Some receivers send a 408 (RFC 9110, section 15.5.9) or a 400 on an idle connection.
		ended := a.closing && (a.Status == http.StatusRequestTimeout || a.Status == http.StatusBadRequest)
		if err != nil {
			ended = !b.in.got && time.Now().Before(deadline) && ctx.Err() == nil && c.config.Context.Err() == nil
		}
		if !cn.kept || !ended {
			return a, err
		}
		// The receiver has closed the kept connection, most likely before the request
		// arrived. Make the request again, which is allowed because a delivery may arrive
		// twice. This happens only once, because the next connection is a new one.
		c.resent.Add(1)
		cn = nil
	}
}
