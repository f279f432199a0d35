package analytics

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/internal/dial"
	"github.com/hookferry/analytics/internal/memnet"
)

// startInMemory starts a server in memory, with TLS on port 443. It returns a transport to that
// server, which is like the client's own, and the number of connections so far. Use it in
// bubbles. In real time, net/http may not reuse a connection: its writer may take longer than
// 50 ms to report that it has written the request.
func startInMemory(t *testing.T, h http.HandlerFunc) (*http.Transport, *atomic.Int32) {
	var conns atomic.Int32
	cert, pool := certificate(t, "collector.example", time.Now().Add(time.Hour))
	server := &http.Server{
		Handler:   h,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2", "http/1.1"}},
		ConnState: func(_ net.Conn, s http.ConnState) {
			if s == http.StateNew {
				conns.Add(1)
			}
		},
	}
	var network memnet.Network
	var serving sync.WaitGroup
	for port, serve := range map[string]func(net.Listener) error{
		"80":  server.Serve,
		"443": func(l net.Listener) error { return server.ServeTLS(l, "", "") },
	} {
		l, err := network.Listen(t.Context(), "tcp", ":"+port)
		if err != nil {
			t.Fatal(err)
		}
		serving.Go(func() { serve(l) })
	}
	own := newTransport(DefaultTimeout)
	own.TLSClientConfig = &tls.Config{RootCAs: pool}
	own.DialContext = func(ctx context.Context, name, addr string) (net.Conn, error) {
		_, port, _ := net.SplitHostPort(addr)
		return network.DialContext(ctx, name, ":"+port)
	}
	t.Cleanup(func() {
		own.CloseIdleConnections()
		server.Close()
		serving.Wait()
	})
	return own, &conns
}

// The client does not close the idle connections of the caller's transport.
func TestCloseLeavesConnectionsOfTheCallersTransportOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const url = "http://collector.example"
		shared, conns := startInMemory(t, func(w http.ResponseWriter, r *http.Request) {
			if _, _, ok := r.BasicAuth(); ok {
				w.WriteHeader(400)
			}
		})
		get := func() {
			resp, err := (&http.Client{Transport: shared}).Get(url)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
		}
		get()
		c := New("k")
		c.Endpoint, c.Transport = url, shared
		track(t, c, 1)
		c.Close()
		get()
		if n := conns.Load(); n != 1 {
			t.Errorf("%d connections, want 1", n)
		}
	})
}

// The server closes the connection at every fifth request, and answers some others with 500. All
// messages arrive nevertheless, and every body that the server reads is complete.
func TestAllMessagesArriveAtAServerThatFailsNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var requests atomic.Int32
		var col collector
		own, conns := startInMemory(t, func(w http.ResponseWriter, r *http.Request) {
			n := requests.Add(1)
			if n%5 == 0 {
				conn, _, err := http.NewResponseController(w).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				conn.Close() // before the body is read
				return
			}
			body, err := io.ReadAll(r.Body)
			if err != nil || int64(len(body)) != r.ContentLength {
				t.Errorf("a body of %d bytes, %v, want %d", len(body), err, r.ContentLength)
				return
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
			if _, err := col.RoundTrip(r); err != nil {
				t.Error(err)
			}
			if n%7 == 0 {
				w.WriteHeader(500) // after the server has read the batch
			}
		})
		c := New("k")
		c.Endpoint, c.Transport = "http://collector.example", own
		const callers, calls = 4, 500
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() { track(t, c, calls) })
		}
		wg.Wait()
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		checkStats(t, c, callers*calls, callers*calls, 0, 0)
		if s := c.Stats(); s.Attempts != uint64(requests.Load()) {
			t.Errorf("Stats().Attempts = %d, the server counted %d", s.Attempts, requests.Load())
		}
		if n := col.distinct(); n != callers*calls {
			t.Errorf("%d different messages arrived, want %d", n, callers*calls)
		}
		t.Logf("%d requests over %d connections", requests.Load(), conns.Load())
	})
}

func TestBatchesShareOneHTTP2Connection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var col collector
		var requests atomic.Int32
		own, conns := startInMemory(t, func(w http.ResponseWriter, r *http.Request) {
			if r.ProtoMajor != 2 {
				t.Errorf("the request came as %s, want HTTP/2", r.Proto)
			}
			if requests.Add(1)%4 == 0 {
				w.WriteHeader(400) // before the body has been read
				return
			}
			if _, err := col.RoundTrip(r); err != nil {
				t.Error(err)
			}
		})
		c := New("k")
		c.Endpoint, c.Transport = "https://collector.example", own
		event := string(bytes.Repeat([]byte("e"), 20000)) // so that a request takes several frames
		for range 8 {
			for range DefaultFlushAt {
				if err := c.Track(&Track{UserId: "u", Event: event}); err != nil {
					t.Fatal(err)
				}
			}
			c.Flush(t.Context())
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		checkStats(t, c, 8*DefaultFlushAt, 6*DefaultFlushAt, 2*DefaultFlushAt, 0)
		if s, n := c.Stats(), col.distinct(); n != 6*DefaultFlushAt || s.ByReason[ReasonRefused] != s.Dropped || conns.Load() != 1 {
			t.Errorf("Stats() = %+v, %d messages arrived over %d connections, want %d over one and the others refused", s, n, conns.Load(), 6*DefaultFlushAt)
		}
	})
}

// A collector may answer 101 and then send nothing. Neither a timeout nor a context stops
// reading from such a connection. So the client closes it and counts the batch as refused.
func TestAnAnswerOf101RefusesTheBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conns := make(chan net.Conn, 2)
		own, _ := startInMemory(t, func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
			conns <- conn
		})
		c := New("k")
		c.Endpoint, c.Transport = "http://collector.example", own
		track(t, c, 2)
		err := c.Flush(t.Context())
		var status *StatusError
		if !errors.As(err, &status) || status.Code != http.StatusSwitchingProtocols {
			t.Errorf("Flush: %v, want a *StatusError of 101", err)
		}
		conn := <-conns
		defer conn.Close()
		if n, err := conn.Read(make([]byte, 1)); n != 0 || err == nil {
			t.Errorf("the connection is open after the answer 101: read %d bytes, %v, want an error", n, err)
		}
		closeClient(t, c)
		if s := c.Stats(); s.Attempts != 1 || s.ByReason[ReasonRefused] != 2 {
			t.Errorf("Stats() = %+v, want one attempt and two messages refused", s)
		}
	})
}

// Of the addresses of a collector, only the last one answers. The first attempt reaches it, although
// it may take a second only.
func TestAddressesShareTheTimeOfAnAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		own, _ := startInMemory(t, func(http.ResponseWriter, *http.Request) { calls.Add(1) })
		connect := own.DialContext
		own.DialContext = dialWithin(time.Second, &dial.Dialer{
			Lookup: func(context.Context, string, string) (ips []netip.Addr, err error) {
				for i := range 8 {
					ips = append(ips, netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}))
				}
				return ips, nil
			},
			Connect: func(ctx context.Context, network, addr string) (net.Conn, error) {
				if addr != "192.0.2.7:80" {
					<-ctx.Done()
					return nil, ctx.Err()
				}
				return connect(ctx, network, addr)
			},
		})
		c := New("k")
		c.Endpoint, c.Transport, c.Timeout = "http://collector.example", own, time.Second
		begun := time.Now()
		if err := c.Enqueue(t.Context(), &Track{UserId: "u", Event: "e"}); err != nil {
			t.Fatal(err)
		}
		if err := c.Flush(t.Context()); err != nil {
			t.Error(err)
		}
		if took := time.Since(begun); took >= time.Second || calls.Load() != 1 || c.Stats().Delivered != 1 {
			t.Errorf("after %v: %d requests and %+v, want one request that was sent within a second", took, calls.Load(), c.Stats())
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}
