package analytics

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/internal/memnet"
)

// startServer returns a server on a real socket and a count of the connections
// made to it.
func startServer(t *testing.T, h http.HandlerFunc) (*httptest.Server, *atomic.Int32) {
	var conns atomic.Int32
	server := httptest.NewUnstartedServer(h)
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			conns.Add(1)
		}
	}
	server.Start()
	t.Cleanup(server.Close)
	return server, &conns
}

// startInMemory returns a transport like the client's own to a server in memory,
// and a count of the connections made to it. It is for bubbles: in real time
// net/http gives up a connection on which a request was answered, but its writer has
// not said within 50 ms that it has written it.
func startInMemory(t *testing.T, h http.HandlerFunc) (*http.Transport, *atomic.Int32) {
	var conns atomic.Int32
	listener := memnet.Listen(&net.TCPAddr{IP: net.IPv4(203, 0, 113, 1), Port: 80})
	server := &http.Server{Handler: h, ConnState: func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			conns.Add(1)
		}
	}}
	var serving sync.WaitGroup
	serving.Go(func() { server.Serve(listener) })
	own := newTransport()
	own.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return listener.Dial(ctx, &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 50000})
	}
	t.Cleanup(func() {
		own.CloseIdleConnections()
		server.Close()
		serving.Wait()
	})
	return own, &conns
}

// Connections are kept after successes, failures and answers with a body.
func TestConnectionsAreReused(t *testing.T) {
	for _, test := range []struct {
		name string
		code int
		body int // bytes
	}{
		{"success", 200, 16},
		{"success with a long answer", 200, 100 << 10},
		{"final failure", 400, 100 << 10},
		{"failure that is retried", 503, 100 << 10},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var requests atomic.Int32
				own, conns := startInMemory(t, func(w http.ResponseWriter, r *http.Request) {
					io.Copy(io.Discard, r.Body)
					code := test.code
					if code == 503 && requests.Load()%2 == 1 {
						code = 200
					}
					requests.Add(1)
					w.WriteHeader(code)
					w.Write(make([]byte, test.body))
				})
				c := New("k")
				c.Endpoint, c.Transport = "http://collector.example", own
				const rounds = 3
				for range rounds {
					track(t, c, 1)
					if err := c.Flush(t.Context()); (err == nil) != (test.code != 400) {
						t.Fatal(err)
					}
				}
				if err := c.Close(); err != nil {
					t.Fatal(err)
				}
				if n := conns.Load(); n != 1 {
					t.Errorf("%d connections for %d requests one after the other, want 1", n, requests.Load())
				}
				if s := c.Stats(); s.Batches != rounds || s.Attempts != uint64(requests.Load()) {
					t.Errorf("Stats() = %+v, want %d batches and %d attempts", s, rounds, requests.Load())
				}
			})
		})
	}
}

// Redirects are final, wherever they lead.
func TestRedirectsAreNotFollowed(t *testing.T) {
	for _, code := range []int{301, 302, 303, 307, 308} {
		for _, location := range []string{"", "/elsewhere", "http://%zz", "http://127.0.0.1:1/"} {
			var requests atomic.Int32
			server, _ := startServer(t, func(w http.ResponseWriter, r *http.Request) {
				requests.Add(1)
				if location != "" {
					w.Header().Set("Location", location)
				}
				w.WriteHeader(code)
			})
			c := New("k")
			c.Endpoint = server.URL
			track(t, c, 1)
			if err := c.Flush(t.Context()); err == nil {
				t.Errorf("%d to %q: no error", code, location)
			}
			if n, refused := requests.Load(), c.Stats().ByReason[ReasonRefused]; n != 1 || refused != 1 {
				t.Errorf("%d to %q: %d requests, %d messages refused, want 1 and 1", code, location, n, refused)
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// A caller's transport is neither closed nor emptied by the client.
func TestASharedTransportKeepsItsConnections(t *testing.T) {
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

// Over a real network, with a server that fails now and then: everything
// arrives, in bodies that are whole although attempts are cut short.
func TestEverythingArrivesOverARealNetwork(t *testing.T) {
	var requests atomic.Int32
	var col collector
	server, conns := startServer(t, func(w http.ResponseWriter, r *http.Request) {
		n := requests.Add(1)
		if n%5 == 0 {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			conn.Close() // in the middle of the request
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil || int64(len(body)) != r.ContentLength {
			t.Errorf("a body of %d bytes, %v, want %d", len(body), err, r.ContentLength)
			return
		}
		req, _ := http.NewRequest("POST", "/", io.NopCloser(bytes.NewReader(body)))
		if _, err := col.RoundTrip(req); err != nil {
			t.Error(err)
		}
		if n%7 == 0 {
			w.WriteHeader(500) // although it was taken
		}
	})
	c := New("k")
	c.Endpoint = server.URL
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { track(t, c, 2500) })
	}
	wg.Wait()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	checkStats(t, c, 10000, 10000, 0, 0)
	if s := c.Stats(); s.Attempts != uint64(requests.Load()) {
		t.Errorf("Stats().Attempts = %d, the server counted %d", s.Attempts, requests.Load())
	}
	ids := map[any]bool{}
	for _, r := range col.got() {
		for _, m := range r.messages {
			ids[m["messageId"]] = true
		}
	}
	if len(ids) != 10000 {
		t.Errorf("%d different messages arrived, want 10000", len(ids))
	}
	t.Logf("%d requests over %d connections", requests.Load(), conns.Load())
}

func TestHTTP2(t *testing.T) {
	var col collector
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 {
			t.Errorf("the request came as %s, want HTTP/2", r.Proto)
		}
		if n := len(col.got()); n%4 == 3 {
			w.WriteHeader(400) // before the body has been read
			col.mu.Lock()
			col.requests = append(col.requests, request{})
			col.mu.Unlock()
			return
		}
		if _, err := col.RoundTrip(r); err != nil {
			t.Error(err)
		}
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	c := New("k")
	c.Endpoint, c.Transport = server.URL, server.Client().Transport
	event := string(bytes.Repeat([]byte("e"), 20000)) // so that a request takes several frames
	for range 8 {
		for range 20 {
			if err := c.Track(&Track{UserId: "u", Event: event}); err != nil {
				t.Fatal(err)
			}
		}
		c.Flush(t.Context())
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	ids := map[any]bool{}
	for _, r := range col.got() {
		for _, m := range r.messages {
			ids[m["messageId"]] = true
		}
	}
	s := c.Stats()
	if s.Queued != 160 || s.Delivered != uint64(len(ids)) || s.Dropped == 0 || s.ByReason[ReasonRefused] != s.Dropped {
		t.Errorf("Stats() = %+v, %d messages arrived, want them delivered and the others of 160 refused", s, len(ids))
	}
}

// A collector that switches protocols and then says nothing does not hold an
// upload: neither a time limit nor a context would end reading from such a
// connection.
func TestSwitchingProtocolsIsFinal(t *testing.T) {
	conns := make(chan net.Conn, 2)
	server, _ := startServer(t, func(w http.ResponseWriter, r *http.Request) {
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
	c.Endpoint = server.URL
	track(t, c, 2)
	flushed := make(chan error, 1)
	go func() { flushed <- c.Flush(context.Background()) }()
	conn := <-conns
	defer conn.Close()
	select {
	case err := <-flushed:
		var status *StatusError
		if !errors.As(err, &status) || status.Code != http.StatusSwitchingProtocols {
			t.Errorf("Flush: %v, want a *StatusError of 101", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the upload still waits")
	}
	if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if n, err := conn.Read(make([]byte, 1)); n != 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection is still open: read %d bytes, %v", n, err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if s := c.Stats(); s.Attempts != 1 || s.ByReason[ReasonRefused] != 2 {
		t.Errorf("Stats() = %+v, want one attempt and two messages refused", s)
	}
}
