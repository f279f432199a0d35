package webhook_test

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/memqueue"
)

// A proxy sends everything to one receiver, whatever the name.
type proxy struct {
	t         *testing.T
	receivers map[string]*httptest.Server // by method: CONNECT for https

	mu    sync.Mutex
	asked []string
}

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.asked = append(p.asked, r.Method+" "+r.RequestURI+" "+r.Header.Get("Proxy-Authorization"))
	p.mu.Unlock()
	upstream, err := net.Dial("tcp", p.receivers[r.Method].Listener.Addr().String())
	if err != nil {
		p.t.Error(err)
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer upstream.Close()
	if r.Method != http.MethodConnect {
		r.Header.Del("Proxy-Authorization")
		r.Close = true
		if err := r.Write(upstream); err != nil {
			p.t.Error(err)
		}
		_, _ = io.Copy(io.Discard, upstream)
		w.WriteHeader(http.StatusOK)
		return
	}
	w.WriteHeader(http.StatusOK)
	c, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		p.t.Error(err)
		return
	}
	defer c.Close()
	if err := rw.Flush(); err != nil {
		p.t.Error(err)
	}
	done := make(chan struct{})
	go func() { // ends when either side closes
		defer close(done)
		_, _ = io.Copy(upstream, rw)
		_ = upstream.(*net.TCPConn).CloseWrite()
	}()
	_, _ = io.Copy(c, upstream)
	c.Close()
	<-done
}

// TestProxy: with a proxy, names are the proxy's to resolve, and every request
// goes through it, although its address is not public.
func TestProxy(t *testing.T) {
	received := make(chan string, 2)
	hook := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		received <- r.Proto + " " + r.Host + r.URL.Path
	})
	plain, secure := httptest.NewServer(hook), httptest.NewTLSServer(hook)
	defer plain.Close()
	defer secure.Close()
	p := &proxy{t: t, receivers: map[string]*httptest.Server{"POST": plain, "CONNECT": secure}}
	server := httptest.NewServer(p)
	defer server.Close()
	u, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword("user", "pass")

	f, err := webhook.New(webhook.Config{
		Queue:   memqueue.New(memqueue.Config{}),
		Proxy:   u,
		Timeout: time.Minute,
		// The name of httptest's certificate.
		TLSClientConfig: &tls.Config{RootCAs: secure.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs},
		Destinations: []webhook.Destination{
			{ID: "http", Endpoints: []webhook.Endpoint{{URL: "http://nowhere.invalid/hook"}}},
			{ID: "https", Endpoints: []webhook.Endpoint{{URL: "https://example.com/hook"}}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	u.Host = "changed.invalid" // New copied it
	run := make(chan error, 1)
	go func() { run <- f.Run(t.Context()) }() // ended below
	var got []string
	for _, id := range []string{"http", "https"} {
		if err := f.Forward(t.Context(), id, call(id)); err != nil {
			t.Fatal(err)
		}
		got = append(got, <-received)
	}
	if want := []string{"HTTP/1.1 nowhere.invalid/hook", "HTTP/1.1 example.com/hook"}; !slices.Equal(got, want) {
		t.Errorf("received %q, want %q", got, want)
	}
	if err := f.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-run; err != nil {
		t.Error(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	want := []string{
		"POST http://nowhere.invalid/hook Basic dXNlcjpwYXNz",
		"CONNECT example.com:443 Basic dXNlcjpwYXNz",
	}
	if !slices.Equal(p.asked, want) {
		t.Errorf("the proxy was asked %q, want %q", p.asked, want)
	}
}
