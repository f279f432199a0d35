// Package wire posts webhooks: HTTP/1.1 over TCP and TLS, by the goroutine that
// asks for it, on connections that are kept.
//
// net/http's transport hands each request from the caller to a goroutine that
// writes and one that reads, and makes contexts, maps and readers on the way;
// at tens of thousands of requests a second that is most of their cost. Here a
// request is bytes that were put together once for its endpoint, one write, one
// wait and one read. What is not HTTP/1.1 goes through net/http all the same:
// see nethttp.go.
package wire

import (
	"context"
	"crypto/tls"
	"errors"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
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

// ErrTimeout is the error of a request that had no complete answer at its
// deadline, wherever it was by then.
var ErrTimeout = errors.New("no complete answer in time")

// A ProtocolError is the error of an answer that is not HTTP, or over a bound.
type ProtocolError string

func (e ProtocolError) Error() string { return "malformed answer: " + string(e) }

// Config configures a Client.
type Config struct {
	// Context ends all requests when it is done, with its cause as their
	// error.
	Context context.Context
	// Dial opens connections. It must end with its context. Those that are no
	// sockets of the net package need no deadlines; what is being read and
	// written has to end when they are closed.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Proxy is the proxy of all requests; nil is none.
	Proxy *url.URL
	// TLS is the configuration of connections whose Target has none. It is
	// not changed.
	TLS *tls.Config
	// Timeout is the time that requests have, as their deadlines say. It bounds
	// what has no request's deadline, too: the making of an HTTP/2 connection,
	// and a sign of life on one.
	Timeout time.Duration
	// MaxIdle is how many idle connections are kept. Beyond it, some are
	// closed, those unused for longest first.
	MaxIdle int
}

// A Client makes requests. Its methods may be called concurrently.
type Client struct {
	config Config
	stop   func() bool // forgets config.Context
	http2  bool        // net/http speaks it

	aborted atomic.Bool  // config.Context is done, or the client closed
	resent  atomic.Int64 // see Resent
	idle    atomic.Int64 // connections

	// mu is not held across I/O. A host's mutex is taken under it.
	mu     sync.Mutex
	closed bool
	hosts  map[key]*host
	conns  map[*conn]struct{} // open, idle or not
	sweeps *time.Timer        // nil while there is no host
}

// New returns a Client.
func New(c Config) *Client {
	client := &Client{config: c, hosts: make(map[key]*host), conns: make(map[*conn]struct{}), http2: speaksHTTP2()}
	client.stop = context.AfterFunc(c.Context, client.abort)
	return client
}

// Close closes all connections. It is called when no request is under way. Requests
// made after it fail.
func (c *Client) Close() {
	c.stop()
	c.aborted.Store(true)
	c.mu.Lock()
	c.closed = true
	if c.sweeps != nil {
		c.sweeps.Stop()
		c.sweeps = nil
	}
	hosts := c.hosts
	c.hosts = make(map[key]*host)
	c.mu.Unlock()
	for _, h := range hosts {
		h.discard()
	}
}

// abort interrupts all requests under way. A request looks at aborted after its
// connection was put into conns, so it is either interrupted or sees aborted.
func (c *Client) abort() {
	c.aborted.Store(true)
	c.mu.Lock()
	conns := slices.Collect(maps.Keys(c.conns))
	c.mu.Unlock()
	for _, cn := range conns {
		cn.interrupt()
	}
}

// Resent counts the requests that were made again at once, on another
// connection, because a kept one ended without a byte of an answer, or with a
// farewell. Most had not reached the receiver; some may have.
func (c *Client) Resent() int64 { return c.resent.Load() }

// An Answer is what came back.
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

// farewell reports whether a may be no answer to the request, but the last word of a
// receiver that was about to close an idle connection: some send 408 (RFC 9110,
// section 15.5.9) or 400 then.
func (a *Answer) farewell() bool {
	return a.closing && (a.Status == http.StatusRequestTimeout || a.Status == http.StatusBadRequest)
}

// A Buffer is where a request is put together and its answer is read. It serves
// one request after another, and keeps a few kilobytes from one to the next.
// The zero value is ready to use.
type Buffer struct {
	out  []byte
	in   reader
	kept [MaxKept]byte
}

// Note has the requests made with b fill in n, until it is called with nil.
func (b *Buffer) Note(n *Notes) { b.in.notes = n }

// Notes are details of an answer, for those who show them to people.
type Notes struct {
	// FirstByte is when its first byte was read.
	FirstByte time.Time
	// Header is its header. Of fields that are folded over several lines it has
	// the first line.
	Header http.Header
}

// began notes that something was read.
func (n *Notes) began() {
	if n.FirstByte.IsZero() {
		n.FirstByte = time.Now()
	}
}

// maxInline bounds, in bytes, the requests that are written to their end before the
// answer is read. That much fits into the buffers of the two systems, even if the
// receiver reads nothing. With more, the write and a receiver that answers without
// reading could wait for each other.
const maxInline = 32 << 10

// maxCopy bounds, in bytes, the requests that are copied into one buffer, to be
// written at once.
const maxCopy = 16 << 10

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
	b.in.release()
	if err == nil {
		return a, nil
	}
	if cause := context.Cause(ctx); cause != nil {
		return Answer{}, cause
	}
	if cause := context.Cause(c.config.Context); cause != nil {
		return Answer{}, cause
	}
	// What is closed at that time ends with net.ErrClosed.
	if (isTimeout(err) || errors.Is(err, net.ErrClosed)) && !time.Now().Before(deadline) {
		return Answer{}, ErrTimeout
	}
	return Answer{}, err
}

func (c *Client) post(ctx context.Context, deadline time.Time, t *Target, lines, body []byte, b *Buffer) (Answer, error) {
	h, cn := c.acquire(t)
	if t.foreign || c.config.Proxy != nil || h.h2.Load() {
		defer h.release(deadline)
		return c.postNetHTTP(ctx, deadline, h, t, lines, body, b, cn)
	}
	b.out = t.appendHead(b.out[:0], lines, len(body))
	rest := body
	if len(b.out)+len(body) <= maxCopy {
		b.out = append(b.out, body...)
		rest = nil
	}
	for {
		if cn == nil {
			var err error
			if cn, err = c.dial(ctx, deadline, h); err != nil {
				h.release(deadline)
				return Answer{}, err
			}
			if cn.http2() {
				h.h2.Store(true)
				defer h.release(deadline)
				return c.postNetHTTP(ctx, deadline, h, t, lines, body, b, cn)
			}
		}
		a, keep, err := cn.exchange(ctx, deadline, b, rest)
		if keep {
			h.put(cn, deadline)
			return a, nil
		}
		cn.abandon()
		if err == errStale {
			cn = h.take() // nothing was written
			continue
		}
		ended := a.farewell()
		if err != nil {
			ended = !b.in.got && !isTimeout(err) && ctx.Err() == nil && c.config.Context.Err() == nil
		}
		if !cn.kept || !ended {
			h.release(deadline)
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
