package admin

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
	"github.com/hookferry/analytics/signature"
)

// newServerOnSystem is newServer on the system's network. It allows loopback addresses.
func newServerOnSystem(t *testing.T) *server {
	return newServerOn(t, network{listen: new(net.ListenConfig).Listen}, func(settings *config.Settings) {
		settings.Webhooks.Allow = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	}, nil)
}

func TestTestSendsSampleCalls(t *testing.T) {
	s := newServerOnSystem(t)
	got := ask[api.TestResult](s, 200, "POST", api.TestPath, api.TestRequest{Destination: "crm"})
	var types []string
	for i, x := range got.Exchanges {
		types = append(types, x.Type)
		if x.Status != 200 || x.Outcome != "delivered" || x.Answer != "answered" || x.Timing.Connected <= 0 || x.Timing.Total < x.Timing.FirstByte || x.Timing.FirstByte < x.Timing.Connected {
			t.Errorf("exchange %d: %+v, want a delivery with an answer and ordered times", i, x)
		}
		if err := signature.Verify(x.Body, x.Signature, secret); err != nil {
			t.Errorf("exchange %d: the signature is wrong: %v", i, err)
		}
		for _, want := range []api.Header{{Name: "User-Agent", Value: "Hookferry/1.0"}, {Name: "Authorization", Value: "[redacted]"}, {Name: "Authorization-Key", Value: "[redacted]"}} {
			if !slices.Contains(x.Headers, want) {
				t.Errorf("exchange %d: the request has the headers %v, want %v among them", i, x.Headers, want)
			}
		}
		if !slices.Contains(x.Got, api.Header{Name: "X-Receiver", Value: "test"}) {
			t.Errorf("exchange %d: the answer has the headers %v, want X-Receiver among them", i, x.Got)
		}
	}
	diff(t, "types", types, sampleTypes)
	s.receiver.mu.Lock()
	defer s.receiver.mu.Unlock()
	if len(s.receiver.got) != 6 {
		t.Fatalf("the receiver got %d requests, want 6", len(s.receiver.got))
	}
	for i, r := range s.receiver.got {
		if user, password, _ := r.BasicAuth(); user != "user" || password != "passw0rd" || r.Header.Get("Authorization-Key") != credentials || r.URL.RawQuery != "token=s3cret" {
			t.Errorf("request %d has the headers %v, want the configured credentials and query", i, r.Header)
		}
	}
	if got := ask[api.Status](s, 200, "GET", api.StatusPath, nil); got.Waiting != 0 || got.Totals.Delivered != 0 {
		t.Errorf("the status counts the test: %+v, want nothing", got.Totals)
	}
}

// TestTestMayUseLocalURLs shows that an operator may test a URL on the server's own machine.
func TestTestMayUseLocalURLs(t *testing.T) {
	s := newServerOnSystem(t)
	s.receiver.answers(500)
	for _, host := range []string{"127.0.0.1", "localhost"} {
		_, port, _ := net.SplitHostPort(s.receiver.Listener.Addr().String())
		got := ask[api.TestResult](s, 200, "POST", api.TestPath, api.TestRequest{URL: "http://" + host + ":" + port + "/x?y=s3cret", Types: []string{"track"}})
		if x := got.Exchanges[0]; len(got.Exchanges) != 1 || x.Status != 500 || x.Reason != "server_error" || x.Outcome != "retryable" || x.Signature != "" || !strings.HasSuffix(x.Endpoint, port+"/x") {
			t.Errorf("test of a URL on %s: %+v, want one retryable exchange with the status 500", host, got)
		}
	}
}

// TestTestOfAnUnsavedDestination tests a destination before it is saved, with its headers, its
// secret and its filter.
func TestTestOfAnUnsavedDestination(t *testing.T) {
	s := newServerOnSystem(t)
	request := func(url string) api.TestRequest {
		return api.TestRequest{Types: []string{"track"}, Document: map[string]any{
			"endpoints": []any{map[string]any{"url": url, "headers": map[string]any{"X-Key": "s3cret"}}},
			"secret":    secret,
			"filter":    map[string]any{"exclude": []any{"track"}},
		}}
	}
	got := ask[api.TestResult](s, 200, "POST", api.TestPath, request("http://"+s.receiver.Listener.Addr().String()+"/new"))
	if len(got.Exchanges) != 1 {
		t.Fatalf("%d exchanges, want 1", len(got.Exchanges))
	}
	x := got.Exchanges[0]
	if x.Status != 200 || !x.Filtered || signature.Verify(x.Body, x.Signature, secret) != nil || !slices.Contains(x.Headers, api.Header{Name: "X-Key", Value: "[redacted]"}) {
		t.Errorf("exchange %+v, want the status 200, a good signature, a hidden header, and filtered", x)
	}
	for _, tt := range []struct {
		name    string
		request api.TestRequest
		field   string
	}{
		{"a wrong document", request("ftp://user:passw0rd@a.example/?x=s3cret"), "document.endpoints[0].url"},
		{"an address that is not public", request("http://10.0.0.1/"), "document.endpoints[0].url"},
		{"a document and a destination", api.TestRequest{Destination: "crm", Document: map[string]any{"id": "x"}}, "destination"},
		{"neither a document nor a destination", api.TestRequest{}, "destination"},
		{"the name of an event that is too long", api.TestRequest{Destination: "crm", Event: strings.Repeat("x", analytics.MaxCallSize)}, "event"},
	} {
		if got := ask[api.Error](s, 400, "POST", api.TestPath, tt.request); got.Field != tt.field {
			t.Errorf("%s: error %+v, want the field %s", tt.name, got, tt.field)
		}
	}
}
