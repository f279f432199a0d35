package wire

import (
	"bufio"
	"context"
	"errors"
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
	"time"
)

// long is more time than anything here takes.
const long = time.Minute

// serve serves connections on loopback until the test has ended, and waits for
// their ends: the client is made after it, to be closed before.
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
	c := New(Config{Context: ctx, Dial: new(net.Dialer).DialContext, Timeout: long, MaxIdle: 64})
	t.Cleanup(func() {
		c.Close()
		cancel()
	})
	return c
}

// Of a connection that ended, or said something, while it was idle, no use is
// made, and no request is made twice.
func TestIdleConnectionsAreLookedAt(t *testing.T) {
	if !canProbe {
		t.Skip("sockets cannot be looked at here")
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
				a, err := c.Post(c.config.Context, time.Now().Add(long), to, nil, []byte("{}"), &b)
				if err != nil || a.Status != 200 {
					t.Fatalf("Post = %+v, %v", a, err)
				}
				h := to.host.Load()
				for len(h.idle) > 0 && h.idle[0].alive() {
					runtime.Gosched()
				}
			}
			if dials != 3 || c.Resent() != 0 {
				t.Errorf("%d connections for 3 requests, of which %d were made again; want 3 and 0", dials, c.Resent())
			}
		})
	}
}

// Who speaks first on a new connection has not seen the request.
func TestAnAnswerBeforeTheRequestIsNone(t *testing.T) {
	if !canProbe {
		t.Skip("sockets cannot be looked at here")
	}
	addr := serve(t, func(c net.Conn) {
		io.WriteString(c, ok)
		io.Copy(io.Discard, c)
	})
	c := socketClient(t)
	c.config.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
		nc, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err == nil {
			_, err = nc.Read(make([]byte, 1)) // then the rest is there
		}
		return nc, err
	}
	var b Buffer
	if a, err := c.Post(c.config.Context, time.Now().Add(long), target(t, "http://"+addr+"/"), nil, nil, &b); err != errEarly {
		t.Errorf("Post = %+v, %v; want %v", a, err, errEarly)
	}
}

// Requests and answers of all sizes go over sockets, alone and under TLS, from
// many goroutines at once.
func TestSockets(t *testing.T) {
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
		for i := range 8 {
			wg.Go(func() {
				var b Buffer
				for k := range 100 {
					body := make([]byte, (i*7919+k*104729)%100_000)
					a, err := c.Post(c.config.Context, time.Now().Add(long), to, nil, body, &b)
					if err != nil || a.Status != 200 {
						t.Errorf("%d bytes: Post = %+v, %v", len(body), a, err)
					}
				}
			})
		}
		wg.Wait()
		if n := len(to.host.Load().idle); n == 0 || n > 8 {
			t.Errorf("%d connections are kept", n)
		}
		c.Close()
		server.Close()
	}
}

// Receivers that close connections as they like, after any answer, cost no
// request: those that they had not yet answered are made again.
func TestReceiversThatCloseAtRandom(t *testing.T) {
	addr := serve(t, func(c net.Conn) {
		r := bufio.NewReader(c)
		for {
			if readRequest(r) != nil {
				return
			}
			io.WriteString(c, ok)
			switch rand.IntN(8) {
			case 0:
				return
			case 1:
				readRequest(r) // taken, and not answered
				return
			case 2:
				r.ReadByte() // taken in part: a reset
				return
			}
		}
	})
	c := socketClient(t)
	to := target(t, "http://"+addr+"/")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			var b Buffer
			for range 200 {
				a, err := c.Post(c.config.Context, time.Now().Add(long), to, nil, []byte("{}"), &b)
				if err != nil || a.Status != 200 {
					t.Errorf("Post = %+v, %v", a, err)
				}
			}
		})
	}
	wg.Wait()
	if c.Resent() == 0 {
		t.Error("no request was made again")
	}
}

// A request that waits at a socket ends with its context, the client's, and its
// deadline.
func TestSocketsAreInterrupted(t *testing.T) {
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
		config := Config{Context: ctx, Dial: new(net.Dialer).DialContext, Timeout: long, MaxIdle: 8}
		if secure {
			server.StartTLS()
			config.TLS = server.Client().Transport.(*http.Transport).TLSClientConfig
		} else {
			server.Start()
		}
		c := New(config)
		to := target(t, server.URL)
		post := func(ctx context.Context, deadline time.Time) <-chan error {
			done := make(chan error, 1)
			go func() { // received from by each caller
				var b Buffer
				_, err := c.Post(ctx, deadline, to, nil, []byte("{}"), &b)
				done <- err
			}()
			return done
		}

		own, cut := context.WithCancelCause(ctx)
		done := post(own, time.Now().Add(long))
		<-arrived
		cut(enough)
		if err := <-done; err != enough {
			t.Errorf("TLS %v: after the end of its context Post = %v", secure, err)
		}

		done = post(ctx, time.Now().Add(100*time.Millisecond))
		select {
		case <-arrived:
			if err := <-done; err != ErrTimeout {
				t.Errorf("TLS %v: after its deadline Post = %v", secure, err)
			}
		case err := <-done: // on a machine that is too slow
			if err != ErrTimeout {
				t.Errorf("TLS %v: after its deadline Post = %v", secure, err)
			}
		}

		done = post(ctx, time.Now().Add(long))
		<-arrived
		cancel(enough)
		if err := <-done; err != enough {
			t.Errorf("TLS %v: after the end of the client's context Post = %v", secure, err)
		}
		c.Close()
		server.CloseClientConnections()
		server.Close()
	}
}

// A connection goes on after a large body that was read to its end, although the
// goroutine that wrote it may be later to say so than the answer is.
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
		if _, err := c.Post(c.config.Context, time.Now().Add(long), to, nil, body, &buf); err != nil {
			t.Fatal(err)
		}
	}
	if n := conns.Load(); n != 1 {
		t.Errorf("%d requests took %d connections, want 1", requests, n)
	}
}

// answerAll answers every request of a connection, without garbage.
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

// BenchmarkPost is a request to a receiver in the same process, beside the same
// by net/http.
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
			if _, err := c.Post(c.config.Context, time.Now().Add(long), to, nil, body, &buf); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("client=net/http", func(b *testing.B) {
		c := socketClient(b)
		to := target(b, "http://bücher.example/") // goes by net/http
		dial := c.config.Dial
		c.config.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) { return dial(ctx, network, addr) }
		var buf Buffer
		b.ReportAllocs()
		for b.Loop() {
			if _, err := c.Post(c.config.Context, time.Now().Add(long), to, nil, body, &buf); err != nil {
				b.Fatal(err)
			}
		}
	})
}
