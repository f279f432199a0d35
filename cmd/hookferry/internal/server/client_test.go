package server

import (
	"net/http"
	"net/netip"
	"testing"
)

func TestClientIPTrustsOnlyKnownProxies(t *testing.T) {
	trusted := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
	for _, tt := range []struct {
		name      string
		peer      string
		forwarded []string
		want      string
	}{
		{"no proxy", "192.0.2.1:5", nil, "192.0.2.1"},
		{"a client that is no proxy names an address", "192.0.2.1:5", []string{"203.0.113.1"}, "192.0.2.1"},
		{"a proxy names the client", "10.0.0.1:5", []string{"203.0.113.1"}, "203.0.113.1"},
		{"a proxy passes on what the client sent", "10.0.0.1:5", []string{"127.0.0.1, 203.0.113.1"}, "203.0.113.1"},
		{"two proxies", "10.0.0.1:5", []string{"1.1.1.1, 203.0.113.1, 10.0.0.2"}, "203.0.113.1"},
		{"two headers", "10.0.0.1:5", []string{"1.1.1.1", "203.0.113.1"}, "203.0.113.1"},
		{"all are proxies", "10.0.0.1:5", []string{"10.0.0.3, 10.0.0.2"}, "10.0.0.3"},
		{"a proxy that names no client", "10.0.0.1:5", nil, "10.0.0.1"},
		{"a proxy that names no address", "10.0.0.1:5", []string{"203.0.113.1, unknown"}, "10.0.0.1"},
		{"IPv6", "[fd00::1]:5", []string{"2001:db8::1"}, "2001:db8::1"},
		{"IPv4 mapped to IPv6", "[::ffff:10.0.0.1]:5", []string{"::ffff:203.0.113.1"}, "203.0.113.1"},
		{"a port", "10.0.0.1:5", []string{"1.1.1.1, 203.0.113.1:4711, 10.0.0.2:80"}, "203.0.113.1"},
		{"IPv6 in brackets", "10.0.0.1:5", []string{"[2001:db8::1]"}, "2001:db8::1"},
		{"IPv6 in brackets with a port", "10.0.0.1:5", []string{"[2001:db8::1]:443,[fd00::2]"}, "2001:db8::1"},
		{"IPv6 with a zone and a port", "10.0.0.1:5", []string{"[fe80::1%eth0]:443"}, "fe80::1"},
		{"an open bracket", "10.0.0.1:5", []string{"[2001:db8::1"}, "10.0.0.1"},
		{"a port that is no number", "10.0.0.1:5", []string{"203.0.113.1:http"}, "10.0.0.1"},
		{"no peer", "@", []string{"203.0.113.1"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := &http.Request{RemoteAddr: tt.peer, Header: http.Header{"X-Forwarded-For": tt.forwarded}}
			if got := clientIP(r, trusted); got != tt.want {
				t.Errorf("clientIP = %q, want %q", got, tt.want)
			}
		})
	}
}

// TestPreflightAllowsTraces shows that pages may send the headers of a trace if the settings trust
// clients.
func TestPreflightAllowsTraces(t *testing.T) {
	for more, want := range map[string]string{
		"": "authorization, content-type, x-retry-count",
		"tracing: {endpoint: 'http://127.0.0.1:1'}":                     "authorization, content-type, x-retry-count",
		"tracing: {endpoint: 'http://127.0.0.1:1', trustClients: true}": "authorization, content-type, x-retry-count, traceparent, tracestate, baggage",
	} {
		bubble(t, func(t *testing.T, w *world) {
			s := w.start(more + "\nsources: [{name: web, keys: [k1]}]\n")
			r, err := http.NewRequest("OPTIONS", "http://"+s.public()+"/v1/t", nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := w.client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if got := resp.Header.Get("Access-Control-Allow-Headers"); got != want {
				t.Errorf("with %q a preflight allows %s, want %s", more, got, want)
			}
		})
	}
}
