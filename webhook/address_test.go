package webhook_test

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/memqueue"
)

// A signal is a slog.Handler that sends on its channel when a record is logged.
type signal chan struct{}

func (s signal) Enabled(context.Context, slog.Level) bool { return true }
func (s signal) WithAttrs([]slog.Attr) slog.Handler       { return s }
func (s signal) WithGroup(string) slog.Handler            { return s }
func (s signal) Handle(context.Context, slog.Record) error {
	select {
	case s <- struct{}{}:
	default:
	}
	return nil
}

// The operator writes the URLs in Destinations, so their addresses may be non-public. A customer
// writes the URLs of a Directory, so theirs may not, unless the destination is Trusted or AllowAddresses
// permits it.
func TestNonPublicAddressIsRefusedUnlessTrustedOrAllowed(t *testing.T) {
	for _, tt := range []struct {
		name   string
		host   string
		lookup bool
		trust  bool
		allow  string
		ok     bool
	}{
		{"address of the operator", "127.0.0.1", false, false, "", true},
		{"localhost of the operator", "localhost", false, false, "", true},
		{"mapped address of the operator", "[::ffff:127.0.0.1]", false, false, "", true},
		{"address of a customer", "127.0.0.1", true, false, "", false},
		{"localhost of a customer", "localhost", true, false, "", false},
		{"mapped address of a customer", "[::ffff:7f00:1]", true, false, "", false},
		{"address of a customer that is allowed", "127.0.0.1", true, false, "127.0.0.0/8", true},
		{"address of a customer, another is allowed", "127.0.0.1", true, false, "127.0.0.2/32", false},
		{"address of the operator, looked up", "127.0.0.1", true, true, "", true},
		{"localhost of the operator, looked up", "localhost", true, true, "", true},
	} {
		received := make(chan struct{}, 2)
		server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { received <- struct{}{} }))
		_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
		d := webhook.Destination{ID: "crm", Trusted: tt.trust, Endpoints: []webhook.Endpoint{{URL: "http://" + tt.host + ":" + port + "/"}}}
		c := webhook.Config{Store: testkit.Must(memqueue.Open(memqueue.Config{})), Retries: &webhook.Retries{Timeout: webhook.MaxTimeout}}
		warned := make(signal, 1)
		c.Logger = slog.New(warned)
		if tt.lookup {
			c.Directory = lookup(func(context.Context, string) (*webhook.Destination, error) { return &d, nil })
		} else {
			c.Destinations = []webhook.Destination{d}
		}
		if tt.allow != "" {
			c.AllowAddresses = []netip.Prefix{netip.MustParsePrefix(tt.allow)}
		}
		f, err := webhook.New(c)
		must(t, err)
		run := make(chan error, 1)
		go func() { run <- f.Run(t.Context()) }() // ended below
		must(t, f.Forward(t.Context(), "crm", call("m1")))
		got := false // the request arrived
		select {
		case <-received:
			got = true
		case <-warned:
		}
		if got != tt.ok {
			t.Errorf("%s: request arrived: got %v, want %v", tt.name, got, tt.ok)
		}
		if err := f.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-run; err != nil {
			t.Error(err)
		}
		server.Close()
		dead := collect(t, f.Deliveries(t.Context(), webhook.Query{States: []webhook.State{webhook.StateDead}}))
		if !tt.ok && len(dead) != 1 {
			t.Errorf("%s: got %d dead letters, want 1", tt.name, len(dead))
		} else if !tt.ok && (dead[0].Reason != webhook.ReasonAddress || !strings.Contains(dead[0].Attempts[0].Error, "not public")) {
			t.Errorf("%s: dead letter has the reason %q (%s), want %q", tt.name, dead[0].Reason, dead[0].Attempts[0].Error, webhook.ReasonAddress)
		}
	}
}
