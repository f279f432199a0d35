package webhook_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/webhooktest"
)

// Each request has the headers that Authorize sets for its endpoint, and only those. This holds for
// the forwarder's own client, for net/http, for HTTP/2, and for Try.
func TestAuthorizeSetsHeadersOfEachRequest(t *testing.T) {
	for _, tt := range []struct {
		name           string
		netHTTP, http2 bool
	}{{name: "own client"}, {name: "net/http", netHTTP: true}, {name: "HTTP/2", http2: true}} {
		inBubble(t, func(t *testing.T, r *rig) {
			var calls atomic.Int64
			d := webhook.Destination{ID: "crm", NetHTTP: tt.netHTTP, Authorize: func(_ context.Context, url string, h http.Header) error {
				h.Set("Authorization", fmt.Sprintf("Bearer token-%d of %s", calls.Add(1), url))
				h.Set("X-Tenant", "acme")
				return nil
			}}
			recv := r.network.Receiver("https://crm.example/", "", webhooktest.Do(func(q *webhooktest.Request) webhooktest.Step {
				return webhooktest.Answer(503).WithBody("bad "+q.Header.Get("Authorization")).With("X-Echo", q.Header.Get("Authorization"))
			}))
			recv.SetTLS(webhooktest.TLS{HTTP2: tt.http2})
			for _, path := range []string{"a?key=q", "b"} {
				d.Endpoints = append(d.Endpoints, webhook.Endpoint{URL: "https://crm.example/" + path, Headers: map[string]string{"X-Static": "s"}})
			}
			r.start(webhook.Config{Destinations: []webhook.Destination{d}, MaxConcurrent: 1})
			r.track("m1")
			if _, err := recv.Wait(t.Context(), 4); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			xs, err := r.Try(t.Context(), webhook.Trial{Destination: &d, Event: eventOf(t, "m2")})
			must(t, err)
			tokens := make(map[string]bool)
			for _, q := range recv.Requests() {
				token := q.Header.Get("Authorization")
				if tokens[token] || !strings.HasSuffix(token, " of "+q.URL.String()) && !strings.HasSuffix(token, q.URL.RequestURI()) {
					t.Errorf("%s: %s got the token %q, want a new token for this URL", tt.name, q.URL, token)
				}
				tokens[token] = true
				if len(q.Header["Authorization"]) != 1 || q.Header.Get("X-Tenant") != "acme" || q.Header.Get("X-Static") != "s" {
					t.Errorf("%s: got the header %v, want one Authorization, X-Tenant acme and X-Static s", tt.name, q.Header)
				}
			}
			if n := int(calls.Load()); n != len(recv.Requests()) {
				t.Errorf("%s: got %d calls of Authorize for %d requests, want one for each", tt.name, n, len(recv.Requests()))
			}
			// A token that the endpoint echoes in its answer is redacted before the answer is stored.
			kept := fmt.Sprintf("%+v", xs)
			for d, err := range r.queue.Waiting(t.Context(), "crm", "") {
				must(t, err)
				kept += fmt.Sprintf("%+v", d.Attempts)
			}
			if strings.Contains(kept, "token-") || !strings.Contains(kept, "bad [redacted]") {
				t.Errorf("%s: stored and returned attempts are %s, want the tokens redacted", tt.name, kept)
			}
			if x := xs[0]; x.Header.Get("Authorization") != "[redacted]" || x.Header.Get("X-Tenant") != "[redacted]" {
				t.Errorf("%s: Try returns the header %v, want the values of Authorize redacted", tt.name, x.Header)
			}
		})
	}
}

// If Authorize fails, or sets a header that it may not set, the attempt fails with ReasonAuthorize.
// The forwarder sends no request and retries the delivery later.
func TestAuthorizeFailureFailsTheAttemptWithoutARequest(t *testing.T) {
	const secret = "t0ken-1234"
	set := func(h http.Header, names ...string) error {
		for _, name := range names {
			h[name] = []string{"Bearer " + secret}
		}
		return nil
	}
	for _, tt := range []struct {
		name      string
		authorize func(context.Context, http.Header) error
		want      string // the error of the attempt
	}{
		{"error", func(_ context.Context, h http.Header) error {
			set(h, "Authorization")
			return errors.New("no token, but had " + secret)
		}, "no token, but had [redacted]"},
		{"error with a URL", func(context.Context, http.Header) error {
			return &url.Error{Op: "Post", URL: "https://id:" + secret + "@auth.example/", Err: errors.New("is away")}
		}, "is away"},
		{"panic", func(context.Context, http.Header) error { panic("out of tokens") }, "webhook: Authorize panicked: out of tokens"},
		{"too late", func(ctx context.Context, _ http.Header) error { <-ctx.Done(); return nil }, "no complete answer in time"},
		{"signature", func(_ context.Context, h http.Header) error { return set(h, "x-signature") }, `webhook: Authorize["x-signature"]: may not be replaced`},
		{"host", func(_ context.Context, h http.Header) error { return set(h, "Host") }, `webhook: Authorize["Host"]: may not be replaced`},
		{"id", func(_ context.Context, h http.Header) error { return set(h, "Webhook-Id") }, `webhook: Authorize["Webhook-Id"]: may not be replaced`},
		{"trace", func(_ context.Context, h http.Header) error { return set(h, "Traceparent") }, `webhook: Authorize["Traceparent"]: may not be replaced`},
		{"static header", func(_ context.Context, h http.Header) error { return set(h, "X-Key") }, `webhook: Authorize["X-Key"]: may not be replaced`},
		{"twice", func(_ context.Context, h http.Header) error { return set(h, "X-A", "x-a") }, `webhook: Authorize["x-a"]: is given twice`},
		{"two values", func(_ context.Context, h http.Header) error { h["X-A"] = []string{"1", "2"}; return nil }, `webhook: Authorize["X-A"]: has 2 values; 1 is allowed`},
		{"no value", func(_ context.Context, h http.Header) error { h["X-A"] = nil; return nil }, `webhook: Authorize["X-A"]: has 0 values; 1 is allowed`},
		{"line end", func(_ context.Context, h http.Header) error { h["X-A"] = []string{"1\r\nX-B: 2"}; return nil }, `webhook: Authorize["X-A"]: has a value with a control character`},
		{"name", func(_ context.Context, h http.Header) error { return set(h, "X A") }, `webhook: Authorize["X A"]: is not a header name`},
		{"too many", func(_ context.Context, h http.Header) error { return set(h, "A", "B", "C", "D", "E", "F") }, "webhook: Authorize: has set 6 headers; at most 5 are allowed"},
	} {
		inBubble(t, func(t *testing.T, r *rig) {
			recv := r.network.Receiver("http://crm.example/", "")
			failures, failing := 0, true
			r.start(webhook.Config{Destinations: []webhook.Destination{{
				ID:        "crm",
				Endpoints: []webhook.Endpoint{{URL: "http://crm.example/", Headers: map[string]string{"X-Key": "k"}}},
				Authorize: func(ctx context.Context, _ string, h http.Header) error {
					if !failing {
						return set(h, "Authorization")
					}
					failures++
					return tt.authorize(ctx, h)
				},
			}}})
			r.track("m1")
			time.Sleep(5 * time.Second) // until the first attempt has failed
			synctest.Wait()
			failing = false
			if n := len(recv.Requests()); n != 0 || failures == 0 {
				t.Errorf("%s: got %d requests after %d failures of Authorize, want none after at least one", tt.name, n, failures)
			}
			stats, err := r.DestinationStats(t.Context())
			if err != nil || len(stats) != 1 || stats[0].Failure == nil {
				t.Fatalf("%s: DestinationStats() = %+v, %v; want one destination with a failure", tt.name, stats, err)
			}
			if a := stats[0].Failure.Attempt; a.Reason != webhook.ReasonAuthorize || a.Error != tt.want || a.Status != 0 {
				t.Errorf("%s: attempt failed with %q, %q; want %q, %q", tt.name, a.Reason, a.Error, webhook.ReasonAuthorize, tt.want)
			}
			qs, err := recv.Wait(t.Context(), 1)
			must(t, err)
			if diff := cmp.Diff([]string{"Bearer " + secret}, qs[0].Header["Authorization"]); diff != "" {
				t.Errorf("%s: Authorization (-want +got):\n%s", tt.name, diff)
			}
		})
	}
}
