package wire

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/step"
	"github.com/hookferry/analytics/webhook/webhooktest"
)

// A proxy, or a receiver behind a proxy, may stay silent. The connection to it ends with the time
// limit of the request, or with the client.
func TestSilentProxyHoldsNoConnection(t *testing.T) {
	for _, tt := range []struct {
		name  string
		proxy string
		serve func(c net.Conn)
	}{
		{"CONNECT", "http://proxy.example:3128", func(net.Conn) {}},
		{"handshake", "http://proxy.example:3128", func(c net.Conn) {
			http.ReadRequest(bufio.NewReader(c))
			io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
		}},
		{"SOCKS method", "socks5://proxy.example:1080", func(net.Conn) {}},
		{"SOCKS connection", "socks5://proxy.example:1080", func(c net.Conn) {
			c.Read(make([]byte, 100))
			c.Write([]byte{5, 0})
		}},
		{"SOCKS handshake", "socks5://proxy.example:1080", func(c net.Conn) {
			c.Read(make([]byte, 100))
			c.Write([]byte{5, 0})
			c.Read(make([]byte, 100))
			c.Write([]byte{5, 0, 0, 1, 0, 0, 0, 0, 0, 0})
		}},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := &peer{serve: func(c net.Conn, _ int) {
				tt.serve(c)
				io.Copy(io.Discard, c)
			}}
			c, cancel := p.client(t)
			c.config.Proxy, _ = url.Parse(tt.proxy)
			for range 3 {
				if _, err := post(c, target(t, "https://crm.example/"), nil); err != ErrTimeout {
					t.Errorf("%s: Post = %v, want ErrTimeout", tt.name, err)
				}
				synctest.Wait()
				if n := p.open.Load(); n != 0 {
					t.Errorf("%s: after the time limit %d connections are open, want 0", tt.name, n)
				}
			}
			time.AfterFunc(time.Second, func() { cancel(nil) })
			post(c, target(t, "https://crm.example/"), nil)
			synctest.Wait()
			if n := p.open.Load(); n != 0 {
				t.Errorf("%s: after the end of the client %d connections are open, want 0", tt.name, n)
			}
		})
	}
}

// The time limit of the first request does not end a connection through a proxy. Later requests use
// it again.
func TestConnectionsThroughAProxyAreKept(t *testing.T) {
	for _, tt := range []struct {
		name, url string
		tls       webhooktest.TLS
	}{
		{"plain", "http://crm.example/", webhooktest.TLS{}},
		{"TLS", "https://crm.example/", webhooktest.TLS{}},
		{"HTTP/2", "https://crm.example/", webhooktest.TLS{HTTP2: true}},
	} {
		synctest.Test(t, func(t *testing.T) {
			network := webhooktest.NewNetwork()
			t.Cleanup(func() { network.Close() }) // after the client
			recv := network.Receiver(tt.url, "", step.Answer(200).After(timeout-time.Second))
			if tt.url[:5] == "https" {
				recv.SetTLS(tt.tls)
			}
			p := &peer{serve: func(c net.Conn, _ int) {
				r := bufio.NewReader(c)
				addr := "crm.example:80"
				if tt.url[:5] == "https" {
					req, err := http.ReadRequest(r)
					if err != nil {
						return
					}
					addr = req.Host
					io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
				}
				up, err := network.DialContext(context.Background(), "tcp", addr)
				if err != nil {
					t.Error(err)
					return
				}
				var wg sync.WaitGroup
				wg.Go(func() {
					io.Copy(c, up)
					c.Close()
				})
				io.Copy(up, r)
				up.Close()
				wg.Wait()
			}}
			c, _ := p.client(t)
			c.config.Proxy, _ = url.Parse("http://proxy.example:3128")
			c.config.TLS = network.TLSClientConfig()
			to := target(t, tt.url)
			for range 60 {
				if a, err := post(c, to, []byte("{}")); err != nil || a.Status != 200 {
					t.Fatalf("%s: Post = %+v, %v; want 200", tt.name, a, err)
				}
				time.Sleep(10 * time.Second)
			}
			if n := p.dials.Load(); n != 1 {
				t.Errorf("%s: got %d connections for 60 requests in %v, want 1", tt.name, n, 14*time.Minute)
			}
		})
	}
}

// The client does not forget a host in use whose only connection belongs to net/http.
func TestHTTP2ConnectionsAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network, c := networkClient(t)
		const hook = "https://crm.example/"
		recv := network.Receiver(hook, "")
		recv.SetTLS(webhooktest.TLS{HTTP2: true})
		to := target(t, hook)
		for range 60 {
			if _, err := post(c, to, nil); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Second)
		}
		if n, _ := recv.Conns(); n != 1 {
			t.Errorf("got %d connections for 60 requests in ten minutes, want 1", n)
		}
		time.Sleep(3 * idleTimeout)
		synctest.Wait()
		if _, open := recv.Conns(); open != 0 || len(c.hosts) != 0 {
			t.Errorf("after idleTimeout %d connections are open, %d hosts known; want 0, 0", open, len(c.hosts))
		}
	})
}

// net/http treats the header Idempotency-Key specially. The endpoint's value is still sent.
func TestIdempotencyKeyIsSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network, c := networkClient(t)
		const hook = "https://crm.example/"
		recv := network.Receiver(hook, "")
		recv.SetTLS(webhooktest.TLS{HTTP2: true})
		u, _ := url.Parse(hook)
		to := NewTarget(u, http.Header{"Idempotency-Key": {"k"}}, nil)
		for range 2 {
			if _, err := post(c, to, nil); err != nil {
				t.Fatal(err)
			}
		}
		for _, r := range recv.Requests() {
			if r.Proto != "HTTP/2.0" || r.Header.Get("Idempotency-Key") != "k" {
				t.Errorf("got %s with the headers %v, want HTTP/2.0 with Idempotency-Key k", r.Proto, r.Header)
			}
		}
	})
}

// If a kept connection ends before the answer, net/http resends the request with its body, as this
// package does on its own connections.
func TestNetHTTPResendsRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &peer{serve: func(c net.Conn, _ int) {
			r := bufio.NewReader(c)
			if readRequest(r) == nil {
				io.WriteString(c, ok)
				readRequest(r) // without an answer
			}
		}}
		c, _ := p.client(t)
		to := target(t, "http://crm.example/")
		to.NetHTTP = true
		for range 3 {
			if a, err := post(c, to, []byte("{}")); err != nil || a.Status != 200 {
				t.Errorf("Post = %+v, %v; want 200", a, err)
			}
			synctest.Wait()
		}
		if n := p.dials.Load(); n != 3 {
			t.Errorf("got %d connections for 3 requests, want 3", n)
		}
	})
}

// Both clients take each answer in the same way. After a flaw they close the connection.
func TestBothClientsTakeAnswersTheSameWay(t *testing.T) {
	for _, tt := range answers {
		for _, netHTTP := range []bool{false, true} {
			if netHTTP && (tt.name == "chunk size above 63 bits" || tt.name == "too many chunks") {
				continue // net/http has other bounds, and waits for the rest of the body
			}
			synctest.Test(t, func(t *testing.T) {
				p := &peer{serve: func(c net.Conn, _ int) {
					if readRequest(bufio.NewReader(c)) != nil {
						return
					}
					io.WriteString(c, tt.stream)
					if tt.flaw != "" {
						io.Copy(io.Discard, c) // the client must not wait for the end
					}
				}}
				c, _ := p.client(t)
				to := target(t, "http://crm.example/")
				to.NetHTTP = netHTTP
				a, err := post(c, to, nil)
				if tt.status == 0 {
					if err == nil {
						t.Errorf("%s, NetHTTP %v: Post = %+v, want an error", tt.name, netHTTP, a)
					}
					return
				}
				if err != nil || a.Status != tt.status || a.RetryAfter != tt.after || string(a.Kept) != tt.kept || a.Flaw == "" != (tt.flaw == "") {
					t.Errorf("%s, NetHTTP %v: Post = %+v, %v; want %d, Retry-After %q, the body %q, the flaw %q", tt.name, netHTTP, a, err, tt.status, tt.after, tt.kept, tt.flaw)
				}
				synctest.Wait()
				if n := p.dials.Load(); n != 1 {
					t.Errorf("%s, NetHTTP %v: got %d requests, want 1", tt.name, netHTTP, n)
				}
			})
		}
	}
}

// If a kept connection ends within the header of an answer, the receiver has had the request, which
// neither client makes again.
func TestNothingIsResentAfterPartOfAHeader(t *testing.T) {
	for _, netHTTP := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			p := &peer{serve: func(c net.Conn, _ int) {
				r := bufio.NewReader(c)
				readRequest(r)
				io.WriteString(c, ok)
				readRequest(r)
				io.WriteString(c, ok[:len(ok)-2])
			}}
			c, _ := p.client(t)
			to := target(t, "http://crm.example/")
			to.NetHTTP = netHTTP
			if a, err := post(c, to, nil); err != nil || a.Status != 200 {
				t.Errorf("Post = %+v, %v; want 200", a, err)
			}
			if a, err := post(c, to, nil); !errors.Is(err, io.ErrUnexpectedEOF) || p.dials.Load() != 1 || c.Resent() != 0 {
				t.Errorf("NetHTTP %v: Post = %+v, %v after %d connections; want %v after one", netHTTP, a, err, p.dials.Load(), io.ErrUnexpectedEOF)
			}
		})
	}
}

// With Target.NetHTTP, net/http makes the request. Other targets of the same host keep their own
// connection.
func TestTargetChoosesNetHTTP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &peer{serve: each("HTTP/1.1 200 OK\r\nRetry-After:\r\n 7\r\nContent-Length: 0\r\n\r\n")}
		c, _ := p.client(t)
		to := target(t, "http://crm.example/")
		if a, err := post(c, to, nil); err != nil || a.RetryAfter != "7" {
			t.Errorf("Post = %+v, %v; want 200, Retry-After 7", a, err)
		}
		to = target(t, "http://crm.example/")
		to.NetHTTP = true
		for range 3 {
			if a, err := post(c, to, []byte("{}")); err != nil || a.Status != 200 || a.RetryAfter != "7" {
				t.Errorf("Post = %+v, %v; want 200, Retry-After 7", a, err)
			}
		}
		if n := p.dials.Load(); n != 2 {
			t.Errorf("got %d connections, want 2", n)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		p := &peer{serve: each(ok)}
		c, _ := p.client(t)
		for i := range 6 {
			to := target(t, "http://crm.example/")
			to.NetHTTP = i%2 == 0
			if a, err := post(c, to, nil); err != nil || a.Status != 200 {
				t.Errorf("Post = %+v, %v; want 200", a, err)
			}
		}
		if n := p.dials.Load(); n != 2 {
			t.Errorf("got %d connections, want 2: one of net/http and one of this package", n)
		}
	})
}

// If the connection ends in the middle of a body, the answer is not complete, whoever reads it.
func TestAnswerWithoutItsEndIsAnError(t *testing.T) {
	for _, netHTTP := range []bool{false, true} {
		for _, body := range []string{"", "ab", strings.Repeat("x", 2*MaxKept)} {
			synctest.Test(t, func(t *testing.T) {
				p := &peer{serve: func(c net.Conn, _ int) {
					readRequest(bufio.NewReader(c))
					io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"+body)
				}}
				c, _ := p.client(t)
				to := target(t, "http://crm.example/")
				to.NetHTTP = netHTTP
				if a, err := post(c, to, []byte("{}")); err != io.ErrUnexpectedEOF {
					t.Errorf("NetHTTP %t: Post = %+v, %v after %d of 1000 bytes; want %v", netHTTP, a, err, len(body), io.ErrUnexpectedEOF)
				}
				synctest.Wait() // net/http closes the connection after it has returned the error
			})
		}
	}
}

// Requests of net/http have the same bounds: they end in time, and leave no connection open. But
// net/http may lose an answer that comes before the request was written.
func TestBadPeersCostBoundedTimeWithNetHTTP(t *testing.T) {
	for _, tt := range badPeers {
		synctest.Test(t, func(t *testing.T) {
			p := &peer{serve: tt.serve}
			c, _ := p.client(t)
			u := "http://crm.example/"
			if tt.tls {
				u = "https://crm.example/"
			}
			to := target(t, u)
			to.NetHTTP = true
			begin := time.Now()
			a, err := post(c, to, make([]byte, tt.size))
			if err == nil && (tt.status == 0 || a.Status != tt.status) {
				t.Errorf("%s: Post = %+v, want status %d, or an error", tt.name, a, tt.status)
			}
			if took := time.Since(begin); took > timeout {
				t.Errorf("%s: Post took %v, want at most %v", tt.name, took, timeout)
			}
			synctest.Wait()
			if n := p.open.Load(); n != 0 {
				t.Errorf("%s: %d connections are open, want 0", tt.name, n)
			}
		})
	}
}

// The header of an answer by HTTP/2 has the same bound.
func TestHTTP2HeaderIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network, c := networkClient(t)
		const hook = "https://crm.example/"
		recv := network.Receiver(hook, "", step.Answer(200).With("X-Long", strings.Repeat("x", 2*maxSkipped)))
		recv.SetTLS(webhooktest.TLS{HTTP2: true})
		if a, err := post(c, target(t, hook), nil); err == nil {
			t.Errorf("Post = %+v, nil with a header of %d bytes, want an error", a, 2*maxSkipped)
		}
	})
}

// A redirect by HTTP/2 is the answer. The client does not follow it.
func TestHTTP2RedirectsAreNotFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network, c := networkClient(t)
		const hook, elsewhere = "https://crm.example/", "http://169.254.169.254/"
		recv := network.Receiver(hook, "", step.Answer(307).With("Location", elsewhere))
		recv.SetTLS(webhooktest.TLS{HTTP2: true})
		other := network.Receiver(elsewhere, "")
		if a, err := post(c, target(t, hook), []byte("{}")); err != nil || a.Status != 307 {
			t.Errorf("Post = %+v, %v; want 307", a, err)
		}
		if n := len(other.Requests()); n != 0 {
			t.Errorf("%d requests arrived at the redirect's location, want 0", n)
		}
	})
}

// If GODEBUG turns off HTTP/2 in net/http, the client does not offer HTTP/2.
func TestHTTP2CanBeSwitchedOff(t *testing.T) {
	t.Setenv("GODEBUG", "http2client=0")
	synctest.Test(t, func(t *testing.T) {
		network, c := networkClient(t)
		const hook = "https://crm.example/"
		recv := network.Receiver(hook, "")
		recv.SetTLS(webhooktest.TLS{HTTP2: true})
		if _, err := post(c, target(t, hook), nil); err != nil {
			t.Fatal(err)
		}
		if r := recv.Requests()[0]; r.Proto != "HTTP/1.1" {
			t.Errorf("got a request by %s, want HTTP/1.1", r.Proto)
		}
	})
}
