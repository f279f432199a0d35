package webhook_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/step"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/memqueue"
	"github.com/hookferry/analytics/webhook/webhooktest"
)

// Try sends the same request as an attempt. The TryResult that it returns has the secrets redacted.
func TestTrySendsWhatAnAttemptSends(t *testing.T) {
	const standard = signature.Secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYqr")
	for _, h2 := range []bool{false, true} {
		inBubble(t, func(t *testing.T, r *rig) {
			recv := r.network.Receiver("https://crm.example/", "secret", step.Answer(200).WithBody("thank you").With("X-Its", "own"))
			recv.SetTLS(webhooktest.TLS{HTTP2: h2})
			d := webhook.Destination{
				ID: "crm", Secret: "secret", StandardSecrets: []signature.Secret{standard},
				Endpoints: []webhook.Endpoint{{URL: "https://user:passw0rd@crm.example/hook?token=t0ken", Headers: map[string]string{"X-Api-Key": "s3cret"}}},
			}
			r.start(webhook.Config{Destinations: []webhook.Destination{d}})
			ctx := event.ContextWithTrace(t.Context(), "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "")
			e := eventOf(t, "m1")
			must(t, r.ForwardEvents(ctx, []string{"crm"}, e))
			if _, err := recv.Wait(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			before := r.Stats()
			xs, err := r.Try(ctx, &d, e)
			must(t, err)
			qs := recv.Requests()
			if len(xs) != 1 || len(qs) != 2 {
				t.Fatalf("got %d exchanges and %d requests, want 1 and 2", len(xs), len(qs))
			}
			attempt, try := qs[0], qs[1]
			if diff := cmp.Diff(attempt.Header, try.Header); diff != "" {
				t.Errorf("header (-attempt +try)\n%s", diff)
			}
			if string(attempt.Body) != string(try.Body) || attempt.URL.String() != try.URL.String() || attempt.Proto != try.Proto || try.Signature != nil {
				t.Errorf("Try sent %s %s %s, signature %v; want it as the attempt, %s %s %s", try.Proto, try.URL, try.Body, try.Signature, attempt.Proto, attempt.URL, attempt.Body)
			}
			x := xs[0]
			want := try.Header.Clone()
			for _, name := range []string{"Authorization", "X-Api-Key"} {
				want[name] = []string{"[redacted]"}
			}
			for _, name := range []string{"Content-Length", "Accept-Encoding"} {
				want.Del(name)
			}
			if diff := cmp.Diff(want, x.Header); diff != "" {
				t.Errorf("header of the exchange (-want +got):\n%s", diff)
			}
			if x.Outcome != webhook.OutcomeDelivered || x.Status != 200 || x.Answer != "thank you" || x.AnswerHeader.Get("X-Its") != "own" || x.Endpoint != "https://crm.example/hook" || x.Try != 1 {
				t.Errorf("got the exchange %+v, want it delivered with the status, answer and header of the receiver", x)
			}
			if diff := cmp.Diff(before, r.Stats()); diff != "" {
				t.Errorf("stats changed (-before +after)\n%s", diff)
			}
			for _, s3cret := range []string{"s3cret", "passw0rd", "t0ken", "secret\""} {
				if text := fmt.Sprintf("%+v", xs); strings.Contains(text, s3cret) {
					t.Errorf("the exchange has the secret %q: %s", s3cret, text)
				}
			}
		})
	}
}

func TestTryReportsTheFailureOfEachEndpoint(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.network.Receiver("https://busy.example/", "", step.Answer(503).WithBody("your key is s3cret").With("X-Echo", "s3cret").With("Retry-After", "7"))
		r.network.Receiver("https://gone.example/", "", step.Answer(410))
		r.network.Receiver("https://slow.example/", "", step.Answer(200).After(time.Minute))
		bad := r.network.Receiver("https://bad.example/", "")
		bad.SetTLS(webhooktest.TLS{Certificate: webhooktest.SelfSigned})
		r.start(webhook.Config{Destinations: []webhook.Destination{{ID: "other", Endpoints: []webhook.Endpoint{{URL: "https://other.example/"}}}}})
		d := webhook.Destination{ID: "new", Disabled: true}
		for _, host := range []string{"busy", "gone", "slow", "bad", "nowhere"} {
			d.Endpoints = append(d.Endpoints, webhook.Endpoint{URL: "https://" + host + ".example/", Headers: map[string]string{"X-Key": "s3cret"}})
		}
		begin := time.Now()
		xs, err := r.Try(t.Context(), &d, eventOf(t, "m1"))
		must(t, err)
		var got []string
		for _, x := range xs {
			got = append(got, fmt.Sprint(x.Endpoint, " ", x.Status, " ", x.Reason, " ", x.Outcome))
		}
		want := []string{
			"https://busy.example/ 503 server_error retryable",
			"https://gone.example/ 410 refused permanent",
			"https://slow.example/ 0 timeout retryable",
			"https://bad.example/ 0 certificate permanent",
			"https://nowhere.example/ 0 dns retryable",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("exchanges (-want +got)\n%s", diff)
		}
		if d := time.Since(begin); d != webhook.DefaultTimeout {
			t.Errorf("Try took %v, want %v, as it calls all endpoints at once", d, webhook.DefaultTimeout)
		}
		if x := xs[0]; x.Answer != "your key is [redacted]" || x.AnswerHeader.Get("X-Echo") != "[redacted]" || x.AnswerHeader.Get("Retry-After") != "7" {
			t.Errorf("got the answer %q with the header %v, want the key redacted", x.Answer, x.AnswerHeader)
		}
		if x := xs[3]; x.Error == "" || x.AnswerHeader != nil || x.Secured != 0 {
			t.Errorf("got the failed exchange %+v, want an error, no answer header and no Secured", x)
		}
	})
}

func TestTryRefusesInvalidArgumentsAndShutdown(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		good := &webhook.Destination{ID: "crm", Endpoints: []webhook.Endpoint{{URL: "https://crm.example/"}}}
		r.start(webhook.Config{Destinations: []webhook.Destination{*good}})
		var refused *webhook.ConfigError
		for name, d := range map[string]*webhook.Destination{
			"Destination":                  nil,
			"Destination.Endpoints":        {ID: "crm"},
			"Destination.Endpoints[0].URL": {ID: "crm", Endpoints: []webhook.Endpoint{{URL: "ftp://crm.example/"}}},
		} {
			if _, err := r.Try(t.Context(), d, eventOf(t, "m1")); !errors.As(err, &refused) || refused.Field != name {
				t.Errorf("Try() with an invalid %s = %v, want a *ConfigError that names it", name, err)
			}
		}
		if _, err := r.Try(t.Context(), good, event.Event{}); err == nil {
			t.Error("Try() without an event = nil, want an error")
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if xs, err := r.Try(ctx, good, eventOf(t, "m1")); err != nil || xs[0].Outcome != webhook.OutcomeCutOff {
			t.Errorf("Try() with a canceled context = %v, %v; want the outcome cut_off", xs, err)
		}
		must(t, r.Shutdown(t.Context()))
		if _, err := r.Try(t.Context(), good, eventOf(t, "m1")); !errors.Is(err, webhook.ErrClosed) {
			t.Errorf("Try() after Shutdown = %v, want ErrClosed", err)
		}
	})
}

// With Destination.Trusted, the operator vouches for the address, and the guard lets it pass. This
// applies to this Try alone.
func TestTrustedAppliesToOneTryAlone(t *testing.T) {
	got := make(chan string, 10)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got <- r.URL.Path }))
	defer server.Close()
	_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
	q := testkit.Must(memqueue.Open(memqueue.Config{}))
	defer q.Close()
	f, err := webhook.New(webhook.Config{
		Store: q, Retries: &webhook.Retries{Timeout: webhook.MaxTimeout},
		Directory: lookup(func(context.Context, string) (*webhook.Destination, error) { return nil, webhook.ErrUnknownDestination }),
	})
	must(t, err)
	try := func(host string, trusted bool) webhook.TryResult {
		t.Helper()
		d := webhook.Destination{ID: "new", Trusted: trusted, Endpoints: []webhook.Endpoint{{URL: "http://" + host + ":" + port + "/"}}}
		xs, err := f.Try(t.Context(), &d, eventOf(t, "m1"))
		must(t, err)
		return xs[0]
	}
	for range 2 { // the second round shows that no trust is remembered
		for _, host := range []string{"127.0.0.1", "localhost", "[::ffff:127.0.0.1]"} {
			if x := try(host, true); x.Status != 200 || x.Connected == 0 || x.FirstByte < x.Connected || x.Took < x.FirstByte {
				t.Errorf("%s, trusted: got %+v, want the status 200 and increasing times", host, x)
			}
			if x := try(host, false); x.Reason != webhook.ReasonAddress || x.Outcome != webhook.OutcomePermanent {
				t.Errorf("%s, not trusted: got %+v, want the reason %q", host, x, webhook.ReasonAddress)
			}
		}
	}
	if n := len(got); n != 6 {
		t.Errorf("got %d requests, want 6", n)
	}
	must(t, f.Shutdown(t.Context()))
}

func TestTryReportsConnectionTimes(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		server.EnableHTTP2 = h2
		server.StartTLS()
		defer server.Close()
		q := testkit.Must(memqueue.Open(memqueue.Config{}))
		defer q.Close()
		roots := server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
		d := webhook.Destination{ID: "crm", Trusted: true, Endpoints: []webhook.Endpoint{{URL: server.URL}}}
		f, err := webhook.New(webhook.Config{
			Store: q, Retries: &webhook.Retries{Timeout: webhook.MaxTimeout}, TLSClientConfig: &tls.Config{RootCAs: roots}, Destinations: []webhook.Destination{d},
		})
		must(t, err)
		xs, err := f.Try(t.Context(), &d, eventOf(t, "m1"))
		must(t, err)
		x := xs[0]
		steps := []webhook.Millis{x.Connected, x.Secured, x.FirstByte, x.Took}
		if x.Status != 200 || x.Resolved != 0 || x.Connected <= 0 || !slices.IsSorted(steps) || x.Secured == x.FirstByte {
			t.Errorf("HTTP/2 %v: got the outcome %v, and the times connected, secured, first byte and took %v; want them to increase", h2, x.Outcome, steps)
		}
		if names := slices.Sorted(maps.Keys(x.AnswerHeader)); !slices.Contains(names, "Date") {
			t.Errorf("HTTP/2 %v: the answer has the headers %v, want Date", h2, names)
		}
	}
}
