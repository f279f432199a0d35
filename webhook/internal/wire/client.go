package wire

import (
	"container/list"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// The bounds of an answer, in bytes.
const (
	MaxHeader = 64 << 10 // header and trailer, interim answers included
	MaxBody   = 64 << 10 // read of a body; of a longer one the rest is not waited for
	MaxKept   = 256      // kept of a body
)

// ErrTimeout is the error of a request without a complete answer at its deadline.
var ErrTimeout = errors.New("no complete answer in time")

// A ProtocolError is the error of an answer that is not HTTP, or over a bound.
type ProtocolError string

func (e ProtocolError) Error() string { return "malformed answer: " + string(e) }

// Config configures a Client.
type Config struct {
	// Context ends all requests when it is done, with its cause as their
	// error.
	Context context.Context
	// Dial opens connections. It must end with its context. The connections need no
	// deadlines, but reads and writes must end when they are closed.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Proxy is the proxy of all requests; nil is none.
	Proxy *url.URL
	// TLS is the configuration of connections whose Target has none. It is
	// not changed.
	TLS *tls.Config
	// Timeout is the time from the beginning of a request to its deadline. It also
	// bounds what net/http does without a request: dials, and pings by HTTP/2.
	Timeout time.Duration
	// MaxIdle is how many idle connections are kept. Beyond it, those that have been
	// idle for longest are closed.
	MaxIdle int
}

// A Client makes requests. Its methods may be called concurrently.
type Client struct {
	config Config
	stop   func() bool // forgets config.Context
	http2  bool        // net/http speaks it

	aborted atomic.Bool  // config.Context is done, or the client closed
	resent  atomic.Int64 // see Resent

	// mu is not held across I/O.
	mu     sync.Mutex
	hosts  map[key]*host
	conns  *list.List  // of *conn: all that are open, those released last first
	idle   int         // of conns
	sweeps *time.Timer // nil while there is no host
}

// New returns a Client.
func New(c Config) *Client {
	client := &Client{config: c, hosts: make(map[key]*host), conns: list.New(), http2: speaksHTTP2()}
	client.stop = context.AfterFunc(c.Context, client.abort)
	return client
}

// Close closes all connections. No request may be under way. Requests made after
// it fail.
func (c *Client) Close() {
	c.stop()
	c.aborted.Store(true)
	c.mu.Lock()
	if c.sweeps != nil {
		c.sweeps.Stop()
		c.sweeps = nil
	}
	old := c.takeIdle(nil, func(*conn) bool { return true })
	hosts := c.hosts
	c.hosts = make(map[key]*host)
	c.mu.Unlock()
	closeAll(old, hosts)
}

// abort interrupts all requests under way. A request looks at aborted after its
// connection was put into conns, so it is either interrupted or sees aborted.
func (c *Client) abort() {
	c.aborted.Store(true)
	c.mu.Lock()
	conns := make([]*conn, 0, c.conns.Len())
	for e := c.conns.Front(); e != nil; e = e.Next() {
		conns = append(conns, e.Value.(*conn))
	}
	c.mu.Unlock()
	for _, cn := range conns {
		cn.interrupt()
	}
}

// Resent counts the requests that were made again at once on another connection, because a
// kept one ended without a byte of an answer, or with the answer to an idle connection (see
// Answer.forIdle). Most of them had not reached the receiver; some may have.
func (c *Client) Resent() int64 { return c.resent.Load() }

// An Answer is the receiver's answer to a request.
type Answer struct {
	// Status is 200 to 999, or 101.
	Status int
	// RetryAfter is the value of the header of that name.
	RetryAfter string
	// Kept is the beginning of the body, up to MaxKept bytes. It is valid
	// until the Buffer is used again.
	Kept []byte

	closing bool // it says that it is the last on its connection
}

// forIdle reports whether the receiver may have sent a before the request arrived. Some
// receivers send 408 (RFC 9110, section 15.5.9) or 400 before they close an idle connection.
func (a *Answer) forIdle() bool {
	return a.closing && (a.Status == http.StatusRequestTimeout || a.Status == http.StatusBadRequest)
}

// A Buffer holds a request and the beginning of its answer. It serves one request
// after another, and keeps at most 48 KB from one to the next: 4 KB for the answer,
// the rest for the largest request that is written at once. The zero value is ready
// to use. A Buffer may not be copied after its first use.
type Buffer struct {
	out  []byte
	in   reader
	kept [MaxKept]byte
}

// Note makes the requests with b fill in n, until Note is called with nil.
func (b *Buffer) Note(n *Notes) { b.in.notes = n }

// Post posts body to t and reads the answer to its end, or to MaxBody. lines
// are header lines of this request, each with its CRLF. body and lines are
// not changed, and not used after the return unless net/http makes the request.
//
// The request ends with deadline and with ctx, whichever is first, from the
// dial to the end of the answer. A ctx that is the Client's own costs nothing;
// another one is watched. Post returns the cause of ctx, ErrTimeout, a
// ProtocolError, or the error of the dial, the TLS handshake or the connection.
func (c *Client) Post(ctx context.Context, deadline time.Time, t *Target, lines, body []byte, b *Buffer) (Answer, error) {
	a, err := c.post(ctx, deadline, t, lines, body, b)
	b.in.src = nil
	if err == nil {
		return a, nil
	}
	if cause := context.Cause(ctx); cause != nil {
		return Answer{}, cause
	}
	if cause := context.Cause(c.config.Context); cause != nil {
		return Answer{}, cause
	}
	// At its deadline a connection is closed, which ends its reads with net.ErrClosed.
	if (isTimeout(err) || errors.Is(err, net.ErrClosed)) && !time.Now().Before(deadline) {
		return Answer{}, ErrTimeout
	}
	return Answer{}, err
}

func (c *Client) post(ctx context.Context, deadline time.Time, t *Target, lines, body []byte, b *Buffer) (Answer, error) {
	h, cn := c.acquire(t)
	var keep *conn
	defer func() { c.release(h, deadline, keep) }()
	if c.byNetHTTP(h, t) {
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
			if cn.http2() {
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
			cn = c.take(h) // nothing was written
			continue
		}
		ended := a.forIdle()
		if err != nil {
			ended = !b.in.got && !isTimeout(err) && ctx.Err() == nil && c.config.Context.Err() == nil
		}
		if !cn.kept || !ended {
			return a, err
		}
		// The connection was closed, most likely before the request arrived.
		// Deliveries may arrive twice, so the request is made again: once,
		// because the next connection is a new one.
		c.resent.Add(1)
		cn = nil
	}
}

// isTimeout reports whether err is a deadline's.
func isTimeout(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrTimeout)
}
