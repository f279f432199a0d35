package webhook_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/step"
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
			d := webhook.Destination{ID: "crm", NetHTTP: tt.netHTTP, Authorize: func(_ context.Context, url string) (map[string]string, error) {
				token := fmt.Sprintf("Bearer token-%d of %s", calls.Add(1), url)
				return map[string]string{"Authorization": token, "X-Tenant": "acme"}, nil
			}}
			recv := r.network.Receiver("https://crm.example/", "", webhooktest.Do(func(q *webhooktest.Request) step.Step {
				return step.Answer(503).WithBody("bad "+q.Header.Get("Authorization")).With("X-Echo", q.Header.Get("Authorization"))
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
			xs, err := r.Try(t.Context(), &d, eventOf(t, "m2"))
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
			for d, err := range r.Deliveries(t.Context(), webhook.Query{}) {
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
	headers := func(names ...string) map[string]string {
		h := make(map[string]string)
		for _, name := range names {
			h[name] = "Bearer " + secret
		}
		return h
	}
	set := func(names ...string) func(context.Context) (map[string]string, error) {
		return func(context.Context) (map[string]string, error) { return headers(names...), nil }
	}
	for _, tt := range []struct {
		name      string
		authorize func(context.Context) (map[string]string, error)
		want      string // the error of the attempt
	}{
		{"error", func(context.Context) (map[string]string, error) {
			return headers("Authorization"), errors.New("no token, but had " + secret)
		}, "no token, but had [redacted]"},
		{"error with a URL", func(context.Context) (map[string]string, error) {
			return nil, &url.Error{Op: "Post", URL: "https://id:" + secret + "@auth.example/", Err: errors.New("is away")}
		}, "is away"},
		{"panic", func(context.Context) (map[string]string, error) { panic("out of tokens") }, "webhook: Authorize panicked: out of tokens"},
		{"too late", func(ctx context.Context) (map[string]string, error) { <-ctx.Done(); return nil, nil }, "no complete answer in time"},
		{"signature", set("x-signature"), `webhook: Authorize["x-signature"]: may not be replaced`},
		{"host", set("Host"), `webhook: Authorize["Host"]: may not be replaced`},
		{"id", set("Webhook-Id"), `webhook: Authorize["Webhook-Id"]: may not be replaced`},
		{"trace", set("Traceparent"), `webhook: Authorize["Traceparent"]: may not be replaced`},
		{"static header", set("X-Key"), `webhook: Authorize["X-Key"]: is given twice`},
		{"twice", set("X-A", "x-a"), `webhook: Authorize["x-a"]: is given twice`},
		{"line end", func(context.Context) (map[string]string, error) { return map[string]string{"X-A": "1\r\nX-B: 2"}, nil }, `webhook: Authorize["X-A"]: has a value with a control character`},
		{"name", set("X A"), `webhook: Authorize["X A"]: is not a header name`},
		{"too many", set("A", "B", "C", "D", "E", "F"), "webhook: Authorize: 6 given; at most 5 are allowed"},
	} {
		inBubble(t, func(t *testing.T, r *rig) {
			recv := r.network.Receiver("http://crm.example/", "")
			failures, failing := 0, true
			r.start(webhook.Config{Destinations: []webhook.Destination{{
				ID:        "crm",
				Endpoints: []webhook.Endpoint{{URL: "http://crm.example/", Headers: map[string]string{"X-Key": "k"}}},
				Authorize: func(ctx context.Context, _ string) (map[string]string, error) {
					if !failing {
						return headers("Authorization"), nil
					}
					failures++
					return tt.authorize(ctx)
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
