package wire

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/internal/memnet"
	"github.com/hookferry/analytics/step"
	"github.com/hookferry/analytics/webhook/webhooktest"
)

const timeout = 5 * time.Second

// A peer serves the far end of every connection that its client dials.
type peer struct {
	serve   func(c net.Conn, n int) // the nth connection, counted from 1
	dials   atomic.Int32
	open    atomic.Int32 // near ends that are not closed
	serving sync.WaitGroup
}

// A nearEnd has no deadlines, like a connection through an SSH tunnel.
type nearEnd struct {
	net.Conn
	close func() error
}

func (c *nearEnd) Close() error { return c.close() }

func (c *nearEnd) SetDeadline(time.Time) error      { return errors.ErrUnsupported }
func (c *nearEnd) SetReadDeadline(time.Time) error  { return errors.ErrUnsupported }
func (c *nearEnd) SetWriteDeadline(time.Time) error { return errors.ErrUnsupported }

func (p *peer) dial(context.Context, string, string) (net.Conn, error) {
	near, far := memnet.Pipe(&net.TCPAddr{Port: 1}, &net.TCPAddr{Port: 2})
	n := int(p.dials.Add(1))
	p.open.Add(1)
	p.serving.Go(func() {
		defer far.Close()
		p.serve(far, n)
	})
	return &nearEnd{near, sync.OnceValue(func() error {
		p.open.Add(-1)
		return near.Close()
	})}, nil
}

// client returns a Client of p and a function that ends its requests.
func (p *peer) client(t *testing.T) (*Client, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(context.Background())
	c := New(Config{Context: ctx, Dial: p.dial, Timeout: timeout, MaxIdle: 8})
	t.Cleanup(func() {
		c.Close()
		cancel(nil)
		p.serving.Wait()
		if n := p.open.Load(); n != 0 {
			t.Errorf("%d connections are open at the end, want 0", n)
		}
	})
	return c, cancel
}

// networkClient returns a client of a new simulated network. The end of the test closes both.
func networkClient(t *testing.T) (*webhooktest.Network, *Client) {
	network := webhooktest.NewNetwork()
	t.Cleanup(func() { network.Close() })
	c := New(Config{Context: t.Context(), Dial: network.DialContext, Timeout: timeout, MaxIdle: 8, TLS: network.TLSClientConfig()})
	t.Cleanup(c.Close)
	return network, c
}

func target(t testing.TB, rawURL string) *Target {
	t.Helper()
	u, err := url.Parse(rawURL)
	if err != nil {
		t.Fatal(err)
	}
	return NewTarget(u, http.Header{"User-Agent": {"Hookferry/1.0"}, "Content-Type": {"application/json"}}, nil)
}

// post posts body with the time limit of an attempt.
func post(c *Client, t *Target, body []byte) (Answer, error) {
	var b Buffer
	return c.Post(c.config.Context, time.Now().Add(timeout), t, nil, body, &b)
}

// readRequest reads a request to its end.
func readRequest(r *bufio.Reader) error {
	req, err := http.ReadRequest(r)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, req.Body)
	return err
}

// each answers each request of a connection with s.
func each(s string) func(net.Conn, int) {
	return func(c net.Conn, _ int) {
		for r := bufio.NewReader(c); readRequest(r) == nil; {
			io.WriteString(c, s)
		}
	}
}

const ok = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"

func TestRequestBytes(t *testing.T) {
	for _, tt := range []struct {
		name, url, lines, want string
	}{
		{"plain", "http://crm.example", "", "POST / HTTP/1.1\r\nHost: crm.example\r\nContent-Type: application/json\r\nUser-Agent: Hookferry/1.0\r\nContent-Length: 2\r\n\r\n{}"},
		{"port, path, query, and lines", "http://u:p@Crm.example:8080/a%2Fb/%C3%BC?q=%20#f", "X-Signature: s\r\nX-2: t\r\n",
			"POST /a%2Fb/%C3%BC?q=%20 HTTP/1.1\r\nHost: Crm.example:8080\r\nContent-Type: application/json\r\nUser-Agent: Hookferry/1.0\r\nContent-Length: 2\r\nX-Signature: s\r\nX-2: t\r\n\r\n{}"},
		{"IPv6 zone", "http://[fe80::1%25eth0]:81/", "", "POST / HTTP/1.1\r\nHost: [fe80::1]:81\r\nContent-Type: application/json\r\nUser-Agent: Hookferry/1.0\r\nContent-Length: 2\r\n\r\n{}"},
		{"IPv6", "http://[2001:db8::1]:81/", "", "POST / HTTP/1.1\r\nHost: [2001:db8::1]:81\r\nContent-Type: application/json\r\nUser-Agent: Hookferry/1.0\r\nContent-Length: 2\r\n\r\n{}"},
	} {
		synctest.Test(t, func(t *testing.T) {
			var got []byte
			p := &peer{serve: func(c net.Conn, _ int) {
				got = make([]byte, len(tt.want))
				io.ReadFull(c, got)
				io.WriteString(c, ok)
				c.Read(make([]byte, 1))
			}}
			c, _ := p.client(t)
			var b Buffer
			if a, err := c.Post(c.config.Context, time.Now().Add(timeout), target(t, tt.url), []byte(tt.lines), []byte("{}"), &b); err != nil || a.Status != 200 {
				t.Errorf("%s: Post = %+v, %v; want 200", tt.name, a, err)
			}
			if string(got) != tt.want {
				t.Errorf("%s: sent %q, want %q", tt.name, got, tt.want)
			}
		})
	}
}

func TestBodiesOfAllSizesArrive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []byte
		p := &peer{serve: func(c net.Conn, _ int) {
			for r := bufio.NewReader(c); ; {
				req, err := http.ReadRequest(r)
				if err != nil {
					return
				}
				got, _ = io.ReadAll(req.Body)
				io.WriteString(c, ok)
			}
		}}
		c, _ := p.client(t)
		to := target(t, "http://crm.example/")
		for _, size := range []int{0, 1, maxInline - 200, maxInline, 1 << 20} {
			body := bytes.Repeat([]byte("0123456789abcdefX"), size/17+1)[:size]
			if a, err := post(c, to, body); err != nil || a.Status != 200 {
				t.Fatalf("%d bytes: Post = %+v, %v; want 200", size, a, err)
			}
			if !bytes.Equal(got, body) {
				t.Errorf("%d bytes: got a body of %d bytes, want the one that was sent", size, len(got))
			}
		}
	})
}

// badPeers lists peers that misbehave on a new connection, and the result of a request to each.
var badPeers = []struct {
	name   string
	tls    bool
	size   int // the length of the request's body
	serve  func(c net.Conn, n int)
	status int
	err    func(error) bool // checks the error if status is 0
	takes  time.Duration
}{
	{name: "says nothing", serve: func(c net.Conn, _ int) { io.Copy(io.Discard, c) }, err: is(ErrTimeout), takes: timeout},
	{name: "drips a header", serve: func(c net.Conn, _ int) { drip(c, "HTTP/1.1 200 OK\r\nX: "+strings.Repeat("x", 100)) }, err: is(ErrTimeout), takes: timeout},
	{name: "drips a body", serve: func(c net.Conn, _ int) {
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
		drip(c, strings.Repeat("x", 100))
	}, err: is(ErrTimeout), takes: timeout},
	{name: "drips interim answers", serve: func(c net.Conn, _ int) {
		for {
			if _, err := io.WriteString(c, "HTTP/1.1 102 Wait\r\n\r\n"); err != nil {
				return
			}
			time.Sleep(time.Second)
		}
	}, err: is(ErrTimeout), takes: timeout},
	{name: "floods with interim answers", serve: func(c net.Conn, _ int) {
		for {
			if _, err := io.WriteString(c, "HTTP/1.1 102 Wait\r\n\r\n"); err != nil {
				return
			}
		}
	}, err: is(errLong)},
	{name: "sends a header without end", serve: func(c net.Conn, _ int) {
		io.WriteString(c, "HTTP/1.1 200 OK\r\n")
		for {
			if _, err := io.WriteString(c, "X: y\r\n"); err != nil {
				return
			}
		}
	}, err: is(errLong)},
	{name: "sends 256 MB", serve: func(c net.Conn, _ int) {
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 268435456\r\n\r\n")
		for chunk := make([]byte, 1<<20); ; {
			if _, err := c.Write(chunk); err != nil {
				return
			}
		}
	}, status: 200},
	{name: "reads nothing of a large body", size: 1 << 20, serve: func(c net.Conn, _ int) { time.Sleep(2 * timeout) }, err: is(ErrTimeout), takes: timeout},
	{name: "answers a large body early", size: 1 << 20, serve: func(c net.Conn, _ int) {
		io.WriteString(c, "HTTP/1.1 413 Too large\r\nContent-Length: 0\r\n\r\n")
		time.Sleep(2 * timeout)
	}, status: 413},
	{name: "answers a large body early and closes", size: 1 << 20, serve: func(c net.Conn, _ int) {
		c.Read(make([]byte, 100))
		io.WriteString(c, "HTTP/1.1 413 Too large\r\nContent-Length: 0\r\n\r\n")
	}, status: 413},
	{name: "answers early and closes", size: 20_000, serve: func(c net.Conn, _ int) {
		c.Read(make([]byte, 100))
		io.WriteString(c, "HTTP/1.1 413 Too large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
	}, status: 413},
	{name: "resets", serve: func(c net.Conn, _ int) { memnet.Reset(c) }, err: is(syscall.ECONNRESET)},
	{name: "resets a large body", size: 1 << 20, serve: func(c net.Conn, _ int) {
		c.Read(make([]byte, 100))
		memnet.Reset(c)
	}, err: is(syscall.ECONNRESET)},
	{name: "resets an answer", serve: func(c net.Conn, _ int) {
		readRequest(bufio.NewReader(c))
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nx")
		memnet.Reset(c)
	}, err: is(syscall.ECONNRESET)},
	{name: "closes", serve: func(c net.Conn, _ int) { readRequest(bufio.NewReader(c)) }, err: is(io.EOF)},
	{name: "half closes", serve: func(c net.Conn, _ int) {
		c.(*memnet.Conn).CloseWrite()
		io.Copy(io.Discard, c)
	}, err: is(io.EOF)},
	{name: "says garbage", serve: func(c net.Conn, _ int) {
		readRequest(bufio.NewReader(c))
		io.WriteString(c, "\x00\x01\x02\x03\n")
	}, err: is(errStatus)},
	{name: "switches protocols", serve: func(c net.Conn, _ int) {
		readRequest(bufio.NewReader(c))
		io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\n\r\n")
		io.Copy(io.Discard, c)
	}, status: 101},
	{name: "says nothing to a handshake", tls: true, serve: func(c net.Conn, _ int) { io.Copy(io.Discard, c) }, err: is(ErrTimeout), takes: timeout},
	{name: "reads nothing of a handshake", tls: true, serve: func(c net.Conn, _ int) { time.Sleep(2 * timeout) }, err: is(ErrTimeout), takes: timeout},
	{name: "answers a handshake in plain", tls: true, serve: func(c net.Conn, _ int) {
		c.Read(make([]byte, 4096))
		io.WriteString(c, "HTTP/1.1 400 Bad request\r\n\r\n")
	}, err: func(err error) bool { var e tls.RecordHeaderError; return errors.As(err, &e) }},
}

func is(want error) func(error) bool {
	return func(err error) bool { return errors.Is(err, want) }
}

func drip(c net.Conn, s string) {
	for i := range len(s) {
		if _, err := c.Write([]byte{s[i]}); err != nil {
			return
		}
		time.Sleep(time.Second)
	}
}

// However a peer misbehaves, Post ends in time, and closes the connection.
func TestBadPeersCostBoundedTime(t *testing.T) {
	for _, tt := range badPeers {
		synctest.Test(t, func(t *testing.T) {
			p := &peer{serve: tt.serve}
			c, _ := p.client(t)
			u := "http://crm.example/"
			if tt.tls {
				u = "https://crm.example/"
			}
			begin := time.Now()
			a, err := post(c, target(t, u), make([]byte, tt.size))
			if a.Status != tt.status || tt.status == 0 && !tt.err(err) || tt.status != 0 && err != nil {
				t.Errorf("%s: Post = %+v, %v; want status %d, or the error of such a peer if that is 0", tt.name, a, err, tt.status)
			}
			if took := time.Since(begin); took != tt.takes {
				t.Errorf("%s: Post took %v, want %v", tt.name, took, tt.takes)
			}
			if n := p.dials.Load(); n != 1 {
				t.Errorf("%s: got %d connections, want 1", tt.name, n)
			}
			if n := p.open.Load(); n != 0 {
				t.Errorf("%s: %d connections are open, want 0", tt.name, n)
			}
		})
	}
}

// Post returns at once when its own context ends, or the client's.
func TestPostEndsWithItsContexts(t *testing.T) {
	enough := errors.New("enough")
	for _, tt := range []struct {
		name  string
		url   string
		kept  bool // the request is the second one of a connection
		size  int
		dial  func(context.Context, string, string) (net.Conn, error)
		serve func(c net.Conn, n int)
	}{
		{name: "dial", url: "http://crm.example/", dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}},
		{name: "handshake", url: "https://crm.example/", serve: func(c net.Conn, _ int) { io.Copy(io.Discard, c) }},
		{name: "write", url: "http://crm.example/", size: 1 << 20, serve: func(net.Conn, int) { time.Sleep(timeout) }},
		{name: "header", url: "http://crm.example/", serve: func(c net.Conn, _ int) { io.Copy(io.Discard, c) }},
		{name: "header on a kept connection", url: "http://crm.example/", kept: true, serve: func(c net.Conn, _ int) {
			r := bufio.NewReader(c)
			readRequest(r)
			io.WriteString(c, ok)
			io.Copy(io.Discard, r)
		}},
		{name: "body", url: "http://crm.example/", serve: func(c net.Conn, _ int) {
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n")
			io.Copy(io.Discard, c)
		}},
	} {
		for _, own := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				p := &peer{serve: tt.serve}
				c, cancel := p.client(t)
				if tt.dial != nil {
					c.config.Dial = tt.dial
				}
				ctx := c.config.Context
				to := target(t, tt.url)
				if tt.kept {
					if _, err := post(c, to, nil); err != nil {
						t.Error(err)
					}
				}
				if own {
					ctx, cancel = context.WithCancelCause(ctx)
				}
				time.AfterFunc(time.Second, func() { cancel(enough) })
				begin := time.Now()
				var b Buffer
				_, err := c.Post(ctx, time.Now().Add(timeout), to, nil, make([]byte, tt.size), &b)
				if err != enough || time.Since(begin) != time.Second {
					t.Errorf("%s, context of its own %v: Post = %v after %v; want %v after 1s", tt.name, own, err, time.Since(begin), enough)
				}
				// Post does not begin with an ended context.
				if _, err := c.Post(ctx, time.Now().Add(timeout), to, nil, nil, &b); err != enough {
					t.Errorf("%s, context of its own %v: Post with an ended context = %v, want %v", tt.name, own, err, enough)
				}
				if n := c.Resent(); n != 0 {
					t.Errorf("%s, context of its own %v: %d requests were resent, want 0", tt.name, own, n)
				}
			})
		}
	}
}

// The client keeps a connection unless its answer forbids that. If the receiver has closed a kept
// connection without an answer, the client resends the request.
func TestConnectionsAreKept(t *testing.T) {
	for _, tt := range []struct {
		name   string
		serve  func(net.Conn, int)
		posts  int
		dials  int
		resent int64
	}{
		{name: "one after another", serve: each(ok), posts: 5, dials: 1},
		{name: "chunked", serve: each("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n"), posts: 5, dials: 1},
		{name: "Connection: close", serve: each("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"), posts: 3, dials: 3},
		{name: "two answers", serve: each("HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n" + ok), posts: 3, dials: 3},
		{name: "too long a body", serve: each("HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + strings.Repeat("x", 65_000)), posts: 1, dials: 1},
		{name: "closed after each answer", serve: func(c net.Conn, _ int) {
			if readRequest(bufio.NewReader(c)) == nil {
				io.WriteString(c, ok)
			}
		}, posts: 3, dials: 3, resent: 2},
		{name: "closed at random", serve: func(c net.Conn, n int) {
			r := bufio.NewReader(c)
			for range n % 4 {
				if readRequest(r) != nil {
					return
				}
				io.WriteString(c, ok)
			}
			readRequest(r) // without an answer
		}, posts: 6, dials: 3, resent: 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := &peer{serve: tt.serve}
			c, _ := p.client(t)
			to := target(t, "http://crm.example/")
			for range tt.posts {
				if tt.name == "too long a body" {
					break
				}
				if a, err := post(c, to, []byte("{}")); err != nil {
					t.Errorf("%s: Post = %+v, %v; want nil", tt.name, a, err)
				}
				synctest.Wait()
			}
			if tt.name == "too long a body" {
				if _, err := post(c, to, nil); err != ErrTimeout {
					t.Errorf("%s: Post = %v, want ErrTimeout", tt.name, err)
				}
			}
			if n := int(p.dials.Load()); n != tt.dials {
				t.Errorf("%s: %d connections for %d requests, want %d", tt.name, n, tt.posts, tt.dials)
			}
			if n := c.Resent(); n != tt.resent {
				t.Errorf("%s: %d requests were resent, want %d", tt.name, n, tt.resent)
			}
		})
	}
}

// A receiver may send a response before it closes an idle connection. The client does not take that
// response for the answer to its next request.
func TestResponseOnIdleConnectionAnswersNoRequest(t *testing.T) {
	const (
		timedOut = "HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
		bad      = "HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
	)
	for _, tt := range []struct {
		name   string
		idle   string // sent on an idle connection, before it is closed
		answer string // to the second request of a connection
		status int    // of the second request
		dials  int
	}{
		{name: "408", idle: timedOut, status: 200, dials: 2},
		{name: "408 by HTTP/1.0", idle: "HTTP/1.0 408 Request Time-out\r\n\r\n<html>", status: 200, dials: 2},
		{name: "408 to the end of the connection", idle: "HTTP/1.1 408 Request Time-out\r\n\r\n<html>", status: 200, dials: 2},
		{name: "400", idle: bad, status: 200, dials: 2},
		{name: "answer of 400", answer: strings.Replace(bad, "close", "keep-alive", 1), status: 400, dials: 1},
		{name: "answer of 400 and close", answer: bad, status: 200, dials: 2},
		{name: "answer of 404 and close", answer: strings.Replace(bad, "400", "404", 1), status: 404, dials: 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := &peer{serve: func(c net.Conn, _ int) {
				r := bufio.NewReader(c)
				readRequest(r)
				io.WriteString(c, ok)
				if tt.idle != "" {
					time.Sleep(time.Second)
					io.WriteString(c, tt.idle)
					c.(*memnet.Conn).CloseWrite()
				} else if readRequest(r) == nil {
					io.WriteString(c, tt.answer)
				}
				readRequest(r)
			}}
			c, _ := p.client(t)
			to := target(t, "http://crm.example/")
			for _, want := range []int{200, tt.status} {
				if a, err := post(c, to, []byte("{}")); err != nil || a.Status != want {
					t.Errorf("%s: Post = %+v, %v; want %d", tt.name, a, err, want)
				}
				time.Sleep(time.Minute)
			}
			if n := int(p.dials.Load()); n != tt.dials || c.Resent() != int64(tt.dials-1) {
				t.Errorf("%s: %d connections, %d requests resent; want %d and %d", tt.name, n, c.Resent(), tt.dials, tt.dials-1)
			}
		})
	}
}

// On a new connection, status 408 is the answer to the request.
func TestStatus408OnNewConnectionIsTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &peer{serve: each("HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")}
		c, _ := p.client(t)
		to := target(t, "http://crm.example/")
		for range 2 {
			if a, err := post(c, to, nil); err != nil || a.Status != 408 {
				t.Errorf("Post = %+v, %v; want 408", a, err)
			}
		}
		if n := p.dials.Load(); n != 2 || c.Resent() != 0 {
			t.Errorf("%d connections, %d requests resent; want 2 and 0", n, c.Resent())
		}
	})
}

// The client does not resend a request if the receiver may have accepted it, or if no time is left.
func TestRequestsThatAreNotResent(t *testing.T) {
	enough := errors.New("enough")
	for _, tt := range []struct {
		name   string
		answer string // to the second request, before the connection is closed
		hang   bool   // the connection stays open
		ends   bool   // the client's context ends after a second
		err    error
	}{
		{name: "a part of an answer", answer: "HTTP/1.1 2", err: io.ErrUnexpectedEOF},
		{name: "no time is left", hang: true, err: ErrTimeout},
		{name: "the client ends", hang: true, ends: true, err: enough},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := &peer{serve: func(c net.Conn, _ int) {
				r := bufio.NewReader(c)
				readRequest(r)
				io.WriteString(c, ok)
				readRequest(r)
				io.WriteString(c, tt.answer)
				if tt.hang {
					io.Copy(io.Discard, r)
				}
			}}
			c, cancel := p.client(t)
			to := target(t, "http://crm.example/")
			if _, err := post(c, to, nil); err != nil {
				t.Fatal(err)
			}
			if tt.ends {
				time.AfterFunc(time.Second, func() { cancel(enough) })
			}
			var b Buffer
			_, err := c.Post(t.Context(), time.Now().Add(timeout), to, nil, nil, &b)
			if err != tt.err || c.Resent() != 0 || p.dials.Load() != 1 {
				t.Errorf("%s: Post = %v with %d connections, %d requests resent; want %v, 1 and 0", tt.name, err, p.dials.Load(), c.Resent(), tt.err)
			}
		})
	}
}

// The client resends a request only once, and does so on a new connection.
func TestRequestIsResentOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &peer{serve: func(c net.Conn, n int) {
			r := bufio.NewReader(c)
			if readRequest(r) != nil || n > 2 {
				return
			}
			time.Sleep(time.Second)
			io.WriteString(c, ok)
			readRequest(r)
		}}
		c, _ := p.client(t)
		to := target(t, "http://crm.example/")
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				if _, err := post(c, to, nil); err != nil {
					t.Errorf("Post = %v, want nil", err)
				}
			})
		}
		wg.Wait()
		if _, err := post(c, to, nil); err != io.EOF {
			t.Errorf("Post = %v, want io.EOF", err)
		}
		if n := p.dials.Load(); n != 3 || c.Resent() != 1 {
			t.Errorf("%d connections, %d requests were resent; want 3 and 1", n, c.Resent())
		}
	})
}

// The client closes a connection that was idle for idleTimeout, and forgets a host without
// connections.
func TestIdleConnectionsAreClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &peer{serve: each(ok)}
		c, _ := p.client(t)
		to := target(t, "http://crm.example/")
		for range 3 {
			if _, err := post(c, to, nil); err != nil {
				t.Fatal(err)
			}
			time.Sleep(idleTimeout - timeout)
			if n := p.dials.Load(); n != 1 || p.open.Load() != 1 {
				t.Fatalf("before idleTimeout: got %d connections, %d open; want 1, 1", n, p.open.Load())
			}
		}
		time.Sleep(2*idleTimeout + timeout)
		synctest.Wait()
		if n := p.open.Load(); n != 0 || c.idle.n != 0 || len(c.hosts) != 0 || c.sweeps != nil {
			t.Errorf("after idleTimeout: %d connections are open, %d hosts known; want 0, and no timer", n, len(c.hosts))
		}
		// The same target can be used again.
		if _, err := post(c, to, nil); err != nil || p.dials.Load() != 2 || len(c.hosts) != 1 {
			t.Errorf("Post = %v with %d connections, %d hosts; want nil, 2, 1", err, p.dials.Load(), len(c.hosts))
		}
	})
}

// The client keeps at most MaxIdle connections. It closes the least recently used one first.
func TestConnectionsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &peer{serve: each(ok)}
		c, _ := p.client(t)
		for i := range 100 {
			if _, err := post(c, target(t, fmt.Sprintf("http://h%d.example/", i)), nil); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
			if n := int(p.open.Load()); n > c.config.MaxIdle || n != c.idle.n {
				t.Fatalf("%d connections are open, %d counted; want equal numbers, at most %d", n, c.idle.n, c.config.MaxIdle)
			}
		}
		before := p.dials.Load()
		if _, err := post(c, target(t, "http://h99.example/"), nil); err != nil || p.dials.Load() != before {
			t.Errorf("Post = %v with %d new connections, want nil on the connection used last", err, p.dials.Load()-before)
		}
	})
}

// The client finds the least recently used connection without a look at the other hosts, of which
// there may be very many.
func TestOldestConnectionIsFoundAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &peer{serve: each(ok)}
		c, _ := p.client(t)
		for i := range c.config.MaxIdle {
			if _, err := post(c, target(t, fmt.Sprintf("http://h%d.example/", i)), nil); err != nil {
				t.Fatal(err)
			}
		}
		first := c.hosts[target(t, "http://h0.example/").key]
		deadline := time.Now().Add(timeout)
		h, _ := c.acquire(target(t, "http://new.example/"))
		cn, err := c.dial(t.Context(), deadline, h)
		if err != nil {
			t.Fatal(err)
		}
		hosts := c.hosts
		c.hosts = nil
		c.release(h, deadline, cn)
		c.hosts = hosts
		synctest.Wait()
		if n := int(p.open.Load()); n != c.config.MaxIdle || len(first.idle) > 0 {
			t.Errorf("%d connections are open, %d of them to the first host; want %d and 0", n, len(first.idle), c.config.MaxIdle)
		}
	})
}

// Targets with different TLS configurations never share a connection.
func TestConnectionsAreKeptByTLSConfig(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network, c := networkClient(t)
		const hook = "https://crm.example/"
		recv := network.Receiver(hook, "")
		u, _ := url.Parse(hook)
		same := network.TLSClientConfig()
		for i, config := range []*tls.Config{nil, nil, same, same, network.TLSClientConfig(), {}} {
			_, err := post(c, NewTarget(u, http.Header{}, config), nil)
			if verifies := i < 5; verifies != (err == nil) {
				t.Errorf("Post %d = %v, want success: %v", i, err, verifies)
			}
		}
		if n := len(recv.Requests()); n != 5 {
			t.Errorf("%d requests arrived, want 5", n)
		}
		synctest.Wait()
		if accepted, open := recv.Conns(); accepted != 4 || open != 3 {
			t.Errorf("%d connections made, %d kept; want 4 and 3", accepted, open)
		}
	})
}

// When a receiver turns out to speak HTTP/2, the client uses the same connection for it. It also
// notices when the receiver ends the connection, or no longer speaks HTTP/2.
func TestHTTP2IsDetected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network, c := networkClient(t)
		const hook = "https://crm.example/"
		recv := network.Receiver(hook, "", step.Answer(429).With("Retry-After", "7").WithBody("no"))
		recv.SetTLS(webhooktest.TLS{HTTP2: true})
		to := target(t, hook)
		var b Buffer
		request := func() {
			t.Helper()
			a, err := c.Post(t.Context(), time.Now().Add(timeout), to, []byte("X-Signature: s\r\nWebhook-Id: m1\r\n"), []byte("{}"), &b)
			if err != nil || a.Status != 429 || a.RetryAfter != "7" || string(a.Kept) != "no" {
				t.Errorf("Post = %+v, %v; want 429, Retry-After 7 and the body", a, err)
			}
		}
		for range 3 {
			request()
		}
		reqs := recv.Requests()
		if r := reqs[0]; len(reqs) != 3 || r.Proto != "HTTP/2.0" || r.Header.Get("X-Signature") != "s" ||
			r.Header.Get("Webhook-Id") != "m1" || r.Header.Get("User-Agent") != "Hookferry/1.0" || string(r.Body) != "{}" {
			t.Errorf("got %d requests, the first %+v; want 3, by HTTP/2 with all headers and the body", len(reqs), r)
		}
		if n, _ := recv.Conns(); n != 1 {
			t.Errorf("got %d connections for 3 requests, want 1", n)
		}

		// Many requests at once also share one connection in the end.
		recv.Disconnect()
		synctest.Wait()
		var wg sync.WaitGroup
		recv.SetScript(step.Answer(200).After(time.Second))
		to2 := target(t, hook)
		for range 20 {
			wg.Go(func() {
				if a, err := post(c, to2, nil); err != nil || a.Status != 200 {
					t.Errorf("Post = %+v, %v; want 200", a, err)
				}
			})
		}
		wg.Wait()
		if _, open := recv.Conns(); open != 1 {
			t.Errorf("%d connections are open, want 1", open)
		}

		// The receiver sends GOAWAY after each answer.
		recv.SetScript(step.Answer(200).HangUp())
		for range 5 {
			if a, err := post(c, to, nil); err != nil || a.Status != 200 {
				t.Errorf("Post = %+v, %v; want 200", a, err)
			}
		}

		// The receiver no longer speaks HTTP/2.
		recv.SetTLS(webhooktest.TLS{})
		recv.Disconnect()
		recv.SetScript(step.Answer(429).With("Retry-After", "7").WithBody("no"))
		synctest.Wait()
		for range 3 {
			request()
		}
		if reqs := recv.Requests(); reqs[len(reqs)-1].Proto != "HTTP/1.1" || c.hosts[to.key].h2.Load() {
			t.Errorf("the last request was %s, want HTTP/1.1", reqs[len(reqs)-1].Proto)
		}
	})
}

// A request times out while its HTTP/2 connection is being made. The connection is closed, and the next
// request makes its own.
func TestHTTP2ConnectionTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := webhooktest.NewNetwork()
		defer network.Close()
		const hook = "https://crm.example/"
		recv := network.Receiver(hook, "")
		recv.SetTLS(webhooktest.TLS{HTTP2: true})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var slow atomic.Bool
		dial := func(ctx context.Context, tcp, addr string) (net.Conn, error) {
			if slow.Load() {
				time.Sleep(time.Second) // of the bubble
			}
			return network.DialContext(ctx, tcp, addr)
		}
		c := New(Config{Context: ctx, Dial: dial, Timeout: timeout, MaxIdle: 8, TLS: network.TLSClientConfig()})
		defer c.Close()
		to := target(t, hook)
		if a, err := post(c, to, nil); err != nil || a.Status != 200 {
			t.Fatalf("Post = %+v, %v; want 200", a, err)
		}
		recv.Disconnect()
		synctest.Wait()
		slow.Store(true)
		var b Buffer
		if _, err := c.Post(ctx, time.Now().Add(time.Second/2), to, nil, []byte("{}"), &b); err != ErrTimeout {
			t.Fatalf("Post during a slow dial = %v, want ErrTimeout", err)
		}
		synctest.Wait()
		if _, open := recv.Conns(); open != 0 {
			t.Fatalf("%d connections are open, want 0", open)
		}
		slow.Store(false)
		if a, err := post(c, to, nil); err != nil || a.Status != 200 {
			t.Errorf("Post = %+v, %v; want 200", a, err)
		}
		if n := len(recv.Requests()); n != 2 {
			t.Errorf("%d requests arrived, want 2", n)
		}
	})
}

// A request by HTTP/2 has the same time limit.
func TestHTTP2Timeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network, c := networkClient(t)
		const hook = "https://crm.example/"
		recv := network.Receiver(hook, "", step.Hang(), step.Answer(200).WithBody("slow").Drip(10*time.Second))
		recv.SetTLS(webhooktest.TLS{HTTP2: true})
		to := target(t, hook)
		for range 2 {
			begin := time.Now()
			if a, err := post(c, to, nil); err != ErrTimeout || time.Since(begin) != timeout {
				t.Errorf("Post = %+v, %v after %v; want ErrTimeout after %v", a, err, time.Since(begin), timeout)
			}
		}
	})
}

// Later connections to a receiver resume its TLS session, so their handshakes are short.
func TestTLSSessionsAreResumed(t *testing.T) {
	var resumed []bool
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		resumed = append(resumed, r.TLS.DidResume)
		w.Header().Set("Connection", "close")
	}))
	defer server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	roots := server.Client().Transport.(*http.Transport).TLSClientConfig
	c := New(Config{Context: ctx, Dial: new(net.Dialer).DialContext, Timeout: never, MaxIdle: 8, TLS: roots})
	defer c.Close()
	to := target(t, server.URL)
	var b Buffer
	for range 3 {
		if _, err := c.Post(ctx, time.Now().Add(never), to, nil, nil, &b); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]bool{false, true, true}, resumed); diff != "" {
		t.Errorf("sessions resumed (-want +got):\n%s", diff)
	}
}
