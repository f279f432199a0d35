package webhook_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/memqueue"
)

// proxiedReceivers are two receivers, for http and https, whose names only the proxy resolves.
type proxiedReceivers struct {
	plain, secure *httptest.Server

	mu       sync.Mutex
	received []string // protocol, host and path of each request
}

func newProxiedReceivers(t *testing.T) *proxiedReceivers {
	b := new(proxiedReceivers)
	hook := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.received = append(b.received, r.Proto+" "+r.Host+r.URL.Path)
	})
	b.plain, b.secure = httptest.NewServer(hook), httptest.NewTLSServer(hook)
	t.Cleanup(b.plain.Close)
	t.Cleanup(b.secure.Close)
	return b
}

// sendThrough sends an event to an http URL and to an https URL through the proxy, and returns the
// first attempt at each.
func (b *proxiedReceivers) sendThrough(t *testing.T, proxy string) (as [2]webhook.Attempted) {
	t.Helper()
	u, err := url.Parse(proxy)
	must(t, err)
	seen := make(chan webhook.Attempted, 100)
	f, err := webhook.New(webhook.Config{
		Store:     testkit.Must(memqueue.Open(memqueue.Config{})),
		Proxy:     u,
		Retries:   &webhook.Retries{Timeout: webhook.MaxTimeout},
		Observers: []webhook.Observer{attempts(func(a webhook.Attempted) { seen <- a })},
		// The certificate of httptest is for the host example.com.
		TLSClientConfig: &tls.Config{RootCAs: b.secure.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs},
		Destinations: []webhook.Destination{
			{ID: "http", Endpoints: []webhook.Endpoint{{URL: "http://nowhere.invalid/hook"}}},
			{ID: "https", Endpoints: []webhook.Endpoint{{URL: "https://example.com/hook"}}},
		},
	})
	must(t, err)
	u.Host = "changed.invalid" // has no effect, as New copies the URL
	run := make(chan error, 1)
	go func() { run <- f.Run(t.Context()) }() // ended below
	for i, id := range []string{"http", "https"} {
		must(t, f.Forward(t.Context(), id, call(id)))
		for as[i] = range seen {
			if as[i].Destination == id {
				break // skips retries of the other destination
			}
		}
	}
	if err := f.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-run; err != nil {
		t.Error(err)
	}
	return as
}

// checkReceived checks that each event has arrived or, if failed has a text for it, that its
// attempt failed with this error. Such a failure is of the connection, not an answer of the
// endpoint.
func (b *proxiedReceivers) checkReceived(t *testing.T, as [2]webhook.Attempted, failed [2]string) {
	t.Helper()
	var want []string
	for i, a := range as {
		switch {
		case failed[i] == "":
			want = append(want, []string{"HTTP/1.1 nowhere.invalid/hook", "HTTP/1.1 example.com/hook"}[i])
			if a.Outcome != webhook.OutcomeDelivered {
				t.Errorf("%s: got the attempt %+v, want it delivered", a.Destination, a)
			}
		case a.Outcome != webhook.OutcomeRetryable || a.Reason != webhook.ReasonConnection || a.Status != 0 || a.Answer != "",
			!strings.Contains(a.Error, failed[i]), strings.Contains(a.Error, "hunter2"):
			t.Errorf("%s: got the attempt %+v, want the reason %q and the error %q without the password", a.Destination, a, webhook.ReasonConnection, failed[i])
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if diff := cmp.Diff(want, b.received); diff != "" {
		t.Errorf("received (-want +got):\n%s", diff)
	}
}

// pump copies bytes between near and far until both directions have ended. It reads near through
// from, which may have buffered bytes.
func pump(near net.Conn, from io.Reader, far net.Conn) {
	var wg sync.WaitGroup
	wg.Go(func() {
		io.Copy(far, from)
		far.(*net.TCPConn).CloseWrite()
	})
	io.Copy(near, far)
	near.(*net.TCPConn).CloseWrite()
	wg.Wait()
}

// An httpProxy is an HTTP proxy that connects every name to its receivers.
type httpProxy struct {
	t         *testing.T
	receivers *proxiedReceivers
	auth      string // the Proxy-Authorization that the proxy requires
	status    int    // the answer to CONNECT; 0 means 200

	mu    sync.Mutex
	asked []string
}

func (p *httpProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.asked = append(p.asked, r.Method+" "+r.RequestURI)
	p.mu.Unlock()
	switch {
	case r.Header.Get("Proxy-Authorization") != p.auth:
		w.Header().Set("Proxy-Authenticate", "Basic")
		http.Error(w, "who are you?", http.StatusProxyAuthRequired)
		return
	case r.Method == http.MethodConnect && p.status != 0:
		w.WriteHeader(p.status)
		return
	}
	to := p.receivers.plain
	if r.Method == http.MethodConnect {
		to = p.receivers.secure
	}
	far, err := net.Dial("tcp", to.Listener.Addr().String())
	if err != nil {
		p.t.Error(err)
		return
	}
	defer far.Close()
	if r.Method != http.MethodConnect {
		r.Header.Del("Proxy-Authorization")
		r.Close = true
		if err := r.Write(far); err != nil {
			p.t.Error(err)
		}
		io.Copy(io.Discard, far)
		return
	}
	w.WriteHeader(http.StatusOK)
	near, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		p.t.Error(err)
		return
	}
	defer near.Close()
	if err := rw.Flush(); err != nil {
		p.t.Error(err)
	}
	pump(near, rw, far)
}

// With Config.Proxy, every request goes through the proxy, although the address of the proxy is not
// public. The proxy resolves all names. Failures of the proxy itself are retried.
func TestEveryRequestGoesThroughTheHTTPProxy(t *testing.T) {
	const basic = "Basic dXNlcjpodW50ZXIy" // user:hunter2
	const unknown = "the proxy answered 407 Proxy Authentication Required"
	for _, tt := range []struct {
		name, user, auth string
		status           int
		failed           [2]string // the errors for http and https; "" if the event arrives
	}{
		{name: "no authentication"},
		{name: "password", user: "user:hunter2@", auth: basic},
		{name: "password is missing", auth: basic, failed: [2]string{unknown, unknown}},
		{name: "wrong password", user: "user:hunter2@", auth: "Basic other", failed: [2]string{unknown, unknown}},
		{name: "receiver is unreachable", status: 502, failed: [2]string{1: "the proxy answered 502 Bad Gateway"}},
		{name: "receiver is slow", status: 504, failed: [2]string{1: "the proxy answered 504 Gateway Timeout"}},
		{name: "address refused", status: 403, failed: [2]string{1: "the proxy answered 403 Forbidden"}},
		{name: "another status", status: 299, failed: [2]string{1: "the proxy answered 299"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := &httpProxy{t: t, receivers: newProxiedReceivers(t), auth: tt.auth, status: tt.status}
			server := httptest.NewServer(p)
			defer server.Close()
			p.receivers.checkReceived(t, p.receivers.sendThrough(t, "http://"+tt.user+server.Listener.Addr().String()), tt.failed)
			p.mu.Lock()
			defer p.mu.Unlock()
			asked := slices.Compact(slices.Sorted(slices.Values(p.asked))) // without retries
			if diff := cmp.Diff([]string{"CONNECT example.com:443", "POST http://nowhere.invalid/hook"}, asked); diff != "" {
				t.Errorf("requests to the proxy (-want +got):\n%s", diff)
			}
		})
	}
}

// A socksProxy is a SOCKS5 proxy (RFC 1928, and RFC 1929 for passwords) that connects every name to
// its receivers.
type socksProxy struct {
	t         *testing.T
	receivers *proxiedReceivers
	auth      string // the required user and password; "" for no authentication
	reply     byte   // the answer to a request; 0 is success

	mu    sync.Mutex
	asked []string
}

func (p *socksProxy) serve(near net.Conn) {
	defer near.Close()
	r := bufio.NewReader(near)
	field := func() string { // one byte of length, then as many bytes
		n, _ := r.ReadByte()
		s := make([]byte, n)
		io.ReadFull(r, s)
		return string(s)
	}
	method := byte(0) // none
	if p.auth != "" {
		method = 2 // user and password
	}
	if version, _ := r.ReadByte(); version != 5 || !strings.Contains(field(), string(method)) {
		near.Write([]byte{5, 0xff})
		return
	}
	near.Write([]byte{5, method})
	if method == 2 {
		version, _ := r.ReadByte()
		if version != 1 || field()+":"+field() != p.auth {
			near.Write([]byte{1, 1})
			return
		}
		near.Write([]byte{1, 0})
	}
	head := make([]byte, 4)
	io.ReadFull(r, head)
	if !bytes.Equal(head, []byte{5, 1, 0, 3}) { // CONNECT to a name
		p.t.Errorf("the SOCKS request begins with %v, want a CONNECT to a name", head)
		return
	}
	name := field()
	port := make([]byte, 2)
	io.ReadFull(r, port)
	addr := fmt.Sprintf("%s:%d", name, binary.BigEndian.Uint16(port))
	p.mu.Lock()
	p.asked = append(p.asked, addr)
	p.mu.Unlock()
	near.Write([]byte{5, p.reply, 0, 1, 0, 0, 0, 0, 0, 0})
	if p.reply != 0 {
		return
	}
	to := p.receivers.plain
	if strings.HasSuffix(addr, ":443") {
		to = p.receivers.secure
	}
	far, err := net.Dial("tcp", to.Listener.Addr().String())
	if err != nil {
		p.t.Error(err)
		return
	}
	defer far.Close()
	pump(near, r, far)
}

func TestEveryRequestGoesThroughTheSOCKSProxy(t *testing.T) {
	for _, tt := range []struct {
		name, user, auth string
		reply            byte
		failed           string
	}{
		{name: "no authentication"},
		{name: "password", user: "user:hunter2@", auth: "user:hunter2"},
		{name: "password that is not asked for", user: "user:hunter2@"},
		{name: "password is missing", auth: "user:hunter2", failed: "no acceptable authentication methods"},
		{name: "wrong password", user: "user:hunter2@", auth: "user:other", failed: "authentication failed"},
		{name: "not allowed", reply: 2, failed: "connection not allowed by ruleset"},
		{name: "receiver is unreachable", reply: 5, failed: "connection refused"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := &socksProxy{t: t, receivers: newProxiedReceivers(t), auth: tt.auth, reply: tt.reply}
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			must(t, err)
			var serving sync.WaitGroup
			serving.Go(func() {
				for {
					c, err := ln.Accept()
					if err != nil {
						return
					}
					serving.Go(func() { p.serve(c) })
				}
			})
			p.receivers.checkReceived(t, p.receivers.sendThrough(t, "socks5://"+tt.user+ln.Addr().String()), [2]string{tt.failed, tt.failed})
			ln.Close()
			serving.Wait()
			want := []string{"example.com:443", "nowhere.invalid:80"}
			if tt.failed != "" && tt.reply == 0 {
				want = nil
			}
			asked := slices.Compact(slices.Sorted(slices.Values(p.asked))) // without retries
			if diff := cmp.Diff(want, asked); diff != "" {
				t.Errorf("requests to the proxy (-want +got):\n%s", diff)
			}
		})
	}
}
