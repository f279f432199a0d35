package wire

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"testing"
	"time"
)

// A bufferedWriter keeps writes in held while hold is set, so that a test can send them at once.
type bufferedWriter struct {
	net.Conn
	held bytes.Buffer
	hold bool
}

func (c *bufferedWriter) Write(p []byte) (int, error) {
	if c.hold {
		return c.held.Write(p)
	}
	return c.Conn.Write(p)
}

// The client does not reuse an idle TLS connection that has ended, or on which bytes came after an
// answer. Those bytes are not the answer to the next request, even if TLS has read them together
// with the previous answer.
func TestIdleTLSConnectionsAreCheckedBeforeReuse(t *testing.T) {
	certificate := httptest.NewUnstartedServer(nil)
	certificate.StartTLS()
	defer certificate.Close()
	const gone = "HTTP/1.1 410 Gone\r\nContent-Length: 0\r\n\r\n"
	for _, tt := range []struct {
		name   string
		after  string // sent after the answer, in a record of its own
		cut    int    // how many bytes of that record are not sent
		end    func(tc *tls.Conn, c *net.TCPConn)
		dials  int
		socket bool // only for a real socket
	}{
		{name: "silence", dials: 1},
		{name: "another answer", after: gone, dials: 3},
		{name: "part of a record", after: gone, cut: 1, dials: 3},
		{name: "a record without its header", after: gone, cut: 5 + 1 + len(gone) + 16 - 2, dials: 3},
		{name: "close", end: func(tc *tls.Conn, _ *net.TCPConn) { tc.Close() }, dials: 3, socket: true},
		{name: "close without close_notify", end: func(_ *tls.Conn, c *net.TCPConn) { c.Close() }, dials: 3, socket: true},
		{name: "reset", end: func(_ *tls.Conn, c *net.TCPConn) { c.SetLinger(0); c.Close() }, dials: 3, socket: true},
		{name: "another answer, later", end: func(tc *tls.Conn, _ *net.TCPConn) { io.WriteString(tc, gone) }, dials: 3, socket: true},
	} {
		for _, socket := range []bool{true, false} {
			if tt.socket && (!socket || !canProbe) {
				continue
			}
			addr := serve(t, func(c net.Conn) {
				h := &bufferedWriter{Conn: c}
				tc := tls.Server(h, &tls.Config{Certificates: certificate.TLS.Certificates})
				for r := bufio.NewReader(tc); readRequest(r) == nil; {
					h.hold = true
					io.WriteString(tc, ok)
					if tt.after != "" {
						io.WriteString(tc, tt.after)
					}
					h.hold = false
					c.Write(h.held.Next(h.held.Len() - tt.cut))
					h.held.Reset()
					if tt.end != nil {
						tt.end(tc, c.(*net.TCPConn))
					}
				}
			})
			c := socketClient(t)
			c.config.TLS = certificate.Client().Transport.(*http.Transport).TLSClientConfig
			dials, dial := 0, c.config.Dial
			c.config.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
				dials++
				nc, err := dial(ctx, network, addr)
				if !socket && err == nil {
					nc = struct{ net.Conn }{nc}
				}
				return nc, err
			}
			to := target(t, "https://"+addr+"/")
			var b Buffer
			for range 3 {
				if a, err := c.Post(c.config.Context, time.Now().Add(never), to, nil, []byte("{}"), &b); err != nil || a.Status != 200 {
					t.Errorf("%s, socket %v: Post = %+v, %v; want 200", tt.name, socket, a, err)
				}
				h := c.hosts[to.key]
				for tt.end != nil && len(h.idle) > 0 && h.idle[0].peek.look(h.idle[0].nc) == nil {
					runtime.Gosched()
				}
			}
			if dials != tt.dials || c.Resent() != 0 {
				t.Errorf("%s, socket %v: %d connections for 3 requests, of which %d were resent; want %d and 0",
					tt.name, socket, dials, c.Resent(), tt.dials)
			}
			c.Close()
		}
	}
}

// BenchmarkPostTLS is BenchmarkPost with TLS.
func BenchmarkPostTLS(b *testing.B) {
	certificate := httptest.NewUnstartedServer(nil)
	certificate.StartTLS()
	defer certificate.Close()
	addr := serve(b, func(c net.Conn) {
		answerAll(tls.Server(c, &tls.Config{Certificates: certificate.TLS.Certificates}))
	})
	c := socketClient(b)
	c.config.TLS = certificate.Client().Transport.(*http.Transport).TLSClientConfig
	to := target(b, "https://"+addr+"/")
	body := make([]byte, 450)
	var buf Buffer
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Post(c.config.Context, time.Now().Add(never), to, nil, body, &buf); err != nil {
			b.Fatal(err)
		}
	}
}
