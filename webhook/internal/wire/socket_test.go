package wire

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/internal/soakenv"
)

// never is longer than any test run. It is for deadlines that must not pass.
const never = 24 * time.Hour

// serve serves connections on loopback until the end of the test, which waits until they end. So a
// test creates its client after serve: then the client is closed first, and ends the connections.
func serve(t testing.TB, serve func(c net.Conn)) (addr string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				serve(c)
			})
		}
	})
	t.Cleanup(func() {
		ln.Close()
		wg.Wait()
	})
	return ln.Addr().String()
}

func socketClient(t testing.TB) *Client {
	ctx, cancel := context.WithCancel(context.Background())
	c := New(Config{Context: ctx, Dial: new(net.Dialer).DialContext, Timeout: never, MaxIdle: 64})
	t.Cleanup(func() {
		c.Close()
		cancel()
	})
	return c
}

// The client does not reuse an idle connection that has ended, or on which bytes came. So no
// request has to be resent.
func TestIdleConnectionsAreCheckedBeforeReuse(t *testing.T) {
	if !canProbe {
		t.Skip("this system cannot check sockets for unread data")
	}
	for _, tt := range []struct {
		name  string
		after func(net.Conn)
	}{
		{"close", func(net.Conn) {}},
		{"half close", func(c net.Conn) {
			c.(*net.TCPConn).CloseWrite()
			io.Copy(io.Discard, c)
		}},
		{"reset", func(c net.Conn) { c.(*net.TCPConn).SetLinger(0) }},
		{"answer", func(c net.Conn) {
			io.WriteString(c, "HTTP/1.1 408 Request timeout\r\nContent-Length: 0\r\n\r\n")
			io.Copy(io.Discard, c)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			addr := serve(t, func(c net.Conn) {
				if readRequest(bufio.NewReader(c)) == nil {
					io.WriteString(c, ok)
					tt.after(c)
				}
			})
			c := socketClient(t)
			dials, dial := 0, c.config.Dial
			c.config.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
				dials++
				return dial(ctx, network, addr)
			}
			to := target(t, "http://"+addr+"/")
			var b Buffer
			for range 3 {
				a, err := c.Post(c.config.Context, time.Now().Add(never), to, nil, []byte("{}"), &b)
				if err != nil || a.Status != 200 {
					t.Fatalf("Post = %+v, %v; want 200", a, err)
				}
				h := c.hosts[to.key]
				for len(h.idle) > 0 && h.idle[0].peek.look(h.idle[0].nc) == nil {
					runtime.Gosched()
				}
			}
			if dials != 3 || c.Resent() != 0 {
				t.Errorf("%d connections for 3 requests, of which %d were resent; want 3 and 0", dials, c.Resent())
			}
		})
	}
}

// An answer that comes on a new connection before the request cannot answer it. Post returns an
// error.
func TestAnswerBeforeRequestIsAnError(t *testing.T) {
	if !canProbe {
		t.Skip("this system cannot check sockets for unread data")
	}
	addr := serve(t, func(c net.Conn) {
		io.WriteString(c, ok)
		io.Copy(io.Discard, c)
	})
	c := socketClient(t)
	c.config.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
		nc, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err == nil {
			_, err = nc.Read(make([]byte, 1)) // when a byte has come, the rest is there too
		}
		return nc, err
	}
	var b Buffer
	if a, err := c.Post(c.config.Context, time.Now().Add(never), target(t, "http://"+addr+"/"), nil, nil, &b); err != errEarly {
		t.Errorf("Post = %+v, %v; want %v", a, err, errEarly)
	}
}

// Many goroutines send and receive bodies of all sizes at once over sockets, with and without TLS.
func TestBodiesOfAllSizesOverSockets(t *testing.T) { testSockets(t, 1, 20) }

func testSockets(t *testing.T, seed uint64, requests int) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		if n != r.ContentLength {
			w.WriteHeader(500)
		}
		w.Write(make([]byte, n/2))
	})
	for _, secure := range []bool{false, true} {
		server := httptest.NewUnstartedServer(handler)
		c := socketClient(t)
		if secure {
			server.StartTLS()
			c.config.TLS = server.Client().Transport.(*http.Transport).TLSClientConfig
		} else {
			server.Start()
		}
		to := target(t, server.URL)
		var wg sync.WaitGroup
		for i := range uint64(8) {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(seed, i))
				var b Buffer
				for range requests {
					body := make([]byte, r.IntN(100_000))
					a, err := c.Post(c.config.Context, time.Now().Add(never), to, nil, body, &b)
					if err != nil || a.Status != 200 {
						t.Errorf("seed %d, %d bytes: Post = %+v, %v; want 200", seed, len(body), a, err)
					}
				}
			})
		}
		wg.Wait()
		if n := len(c.hosts[to.key].idle); n == 0 || n > 8 {
			t.Errorf("%d connections are kept, want 1 to 8", n)
		}
		c.Close()
		server.Close()
	}
}

// A receiver may close a connection after any answer. No request fails: the client resends each
// request that was not answered.
func TestRequestsToReceiversThatCloseAtRandomSucceed(t *testing.T) {
	for seed := range soakenv.Seeds(t, 3) {
		synctest.Test(t, func(t *testing.T) {
			p := &peer{serve: closeAtRandom(seed)}
			c, _ := p.client(t)
			postToClosing(t, c, seed, "crm.example")
		})
	}
}

// TestSocketSoak makes requests of all sizes over sockets, also to receivers that close connections
// at random.
func TestSocketSoak(t *testing.T) {
	length, seed := soakenv.Long(t, "wire")
	for end := time.Now().Add(length); time.Now().Before(end) && !t.Failed(); seed++ {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			testSockets(t, seed, 100)
			var n atomic.Int64
			random := closeAtRandom(seed)
			addr := serve(t, func(c net.Conn) { random(c, int(n.Add(1))) })
			postToClosing(t, socketClient(t), seed, addr)
		})
	}
}

// closeAtRandom serves connections that answer at least one request and then close.
func closeAtRandom(seed uint64) func(c net.Conn, n int) {
	return func(c net.Conn, n int) {
		random := rand.New(rand.NewPCG(seed, uint64(n)))
		r := bufio.NewReader(c)
		for readRequest(r) == nil {
			io.WriteString(c, ok)
			switch random.IntN(8) {
			case 0:
				return
			case 1:
				readRequest(r) // without an answer
				return
			case 2:
				r.ReadByte() // reads only a part of the request: the close is a reset
				return
			}
		}
	}
}

// postToClosing makes requests to a receiver that closes connections at random.
func postToClosing(t *testing.T, c *Client, seed uint64, addr string) {
	to := target(t, "http://"+addr+"/")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			var b Buffer
			for range 200 {
				a, err := c.Post(c.config.Context, time.Now().Add(never), to, nil, []byte("{}"), &b)
				if err != nil || a.Status != 200 {
					t.Errorf("seed %d: Post = %+v, %v; want 200", seed, a, err)
				}
			}
		})
	}
	wg.Wait()
	if c.Resent() == 0 {
		t.Errorf("seed %d: no request was resent, want some", seed)
	}
}

// A Post that waits at a socket ends with its own context, with the client's context, and at its
// deadline.
func TestPostOnSocketEndsWithItsContexts(t *testing.T) {
	enough := errors.New("enough")
	for _, secure := range []bool{false, true} {
		arrived := make(chan struct{})
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			select {
			case arrived <- struct{}{}:
			case <-r.Context().Done():
			}
			<-r.Context().Done()
		}))
		server.Config.ErrorLog = log.New(io.Discard, "", 0)
		ctx, cancel := context.WithCancelCause(t.Context())
		config := Config{Context: ctx, Dial: new(net.Dialer).DialContext, Timeout: never, MaxIdle: 8}
		if secure {
			server.StartTLS()
			config.TLS = server.Client().Transport.(*http.Transport).TLSClientConfig
		} else {
			server.Start()
		}
		c := New(config)
		to := target(t, server.URL)
		post := func(ctx context.Context, deadline time.Duration) <-chan error {
			done := make(chan error, 1)
			go func() { // every caller receives from done
				var b Buffer
				_, err := c.Post(ctx, time.Now().Add(deadline), to, nil, []byte("{}"), &b)
				done <- err
			}()
			return done
		}
		ended := func(what string, got, want error) {
			t.Helper()
			if got != want {
				t.Errorf("TLS %v: after the end of %s Post = %v, want %v", secure, what, got, want)
			}
		}

		own, cut := context.WithCancelCause(ctx)
		done := post(own, never)
		<-arrived
		cut(enough)
		ended("its context", <-done, enough)

		// The deadline is long enough for the request to arrive, however slow the machine is.
		for deadline, waits := time.Millisecond, false; !waits; deadline *= 2 {
			done = post(ctx, deadline)
			select {
			case <-arrived:
				waits = true
				ended("its deadline", <-done, ErrTimeout)
			case err := <-done:
				ended("its deadline", err, ErrTimeout)
			}
		}

		done = post(ctx, never)
		<-arrived
		cancel(enough)
		ended("the client's context", <-done, enough)
		c.Close()
		server.CloseClientConnections()
		server.Close()
	}
}

// The client keeps a connection after a large body that the receiver has read to its end. It does
// so even if the answer comes before the goroutine that writes the body reports that it is done.
func TestLargeBodiesKeepTheirConnection(t *testing.T) {
	var conns atomic.Int64
	addr := serve(t, func(c net.Conn) {
		conns.Add(1)
		for r := bufio.NewReader(c); readRequest(r) == nil; {
			io.WriteString(c, ok)
		}
	})
	c := socketClient(t)
	to := target(t, "http://"+addr+"/")
	var buf Buffer
	body := make([]byte, 1<<20)
	const requests = 300
	for range requests {
		if _, err := c.Post(c.config.Context, time.Now().Add(never), to, nil, body, &buf); err != nil {
			t.Fatal(err)
		}
	}
	if n := conns.Load(); n != 1 {
		t.Errorf("%d requests took %d connections, want 1", requests, n)
	}
}

// answerAll answers every request of a connection. It allocates nothing per request.
func answerAll(c net.Conn) {
	r := bufio.NewReader(c)
	answer := []byte(ok)
	const length = 450
	for {
		for {
			line, err := r.ReadSlice('\n')
			if err != nil {
				return
			}
			if len(line) == 2 {
				break
			}
		}
		if _, err := r.Discard(length); err != nil {
			return
		}
		if _, err := c.Write(answer); err != nil {
			return
		}
	}
}

// BenchmarkPost measures a request to a receiver in the same process, by this package and by
// net/http.
func BenchmarkPost(b *testing.B) {
	addr := serve(b, answerAll)
	u := "http://" + addr + "/"
	body := make([]byte, 450)
	b.Run("client=wire", func(b *testing.B) {
		c := socketClient(b)
		to := target(b, u)
		var buf Buffer
		b.ReportAllocs()
		for b.Loop() {
			if _, err := c.Post(c.config.Context, time.Now().Add(never), to, nil, body, &buf); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("client=net/http", func(b *testing.B) {
		c := socketClient(b)
		to := target(b, u)
		to.NetHTTP = true
		var buf Buffer
		b.ReportAllocs()
		for b.Loop() {
			if _, err := c.Post(c.config.Context, time.Now().Add(never), to, nil, body, &buf); err != nil {
				b.Fatal(err)
			}
		}
	})
}
