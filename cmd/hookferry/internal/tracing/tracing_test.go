package tracing

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	coltrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
	"github.com/hookferry/analytics/collector"
	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/internal/memnet"
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/step"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/memqueue"
	"github.com/hookferry/analytics/webhook/webhooktest"
)

// serve serves requests on a network in memory until the test ends. The test runs in a bubble.
func serve(t *testing.T, h http.Handler) (network *memnet.Network, url string) {
	t.Helper()
	network = new(memnet.Network)
	l, err := network.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &httptest.Server{Listener: l, Config: &http.Server{Handler: h}}
	server.Start()
	t.Cleanup(server.Close)
	return network, server.URL
}

// A receiver accepts traces over OTLP, and records the spans.
type receiver struct {
	network  *memnet.Network
	url      string
	mu       sync.Mutex
	header   http.Header
	path     string
	resource map[string]string
	spans    []*tracepb.Span
}

func newReceiver(t *testing.T) *receiver {
	r := &receiver{}
	r.network, r.url = serve(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			t.Error(err)
		}
		var export coltrace.ExportTraceServiceRequest
		if err := proto.Unmarshal(body, &export); err != nil {
			t.Error(err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.header, r.path = req.Header.Clone(), req.URL.Path
		for _, resource := range export.ResourceSpans {
			r.resource = attributes(resource.Resource.Attributes)
			for _, s := range resource.ScopeSpans {
				r.spans = append(r.spans, s.Spans...)
			}
		}
	}))
	return r
}

// start starts a tracer that sends its spans to a path of the receiver.
func (r *receiver) start(t *testing.T, path string, c Config) *Tracer {
	t.Helper()
	c.Endpoint, c.Dial = r.url+path, r.network.DialContext
	return start(t, c)
}

func attributes(kvs []*common.KeyValue) map[string]string {
	m := map[string]string{}
	for _, kv := range kvs {
		if s, ok := kv.Value.Value.(*common.AnyValue_StringValue); ok {
			m[kv.Key] = s.StringValue
		} else {
			m[kv.Key] = strings.TrimPrefix(kv.Value.String(), "int_value:")
		}
	}
	return m
}

// ends sends the end of each delivery to a channel, after the tracer has seen it.
type ends struct {
	webhook.Observer
	ended chan webhook.Record
}

func (e *ends) Ended(end webhook.Record) {
	e.Observer.Ended(end)
	e.ended <- end
}

// run posts a batch of one call to a server that traces. The request has the header traceparent,
// unless that is empty, and the headers tracestate. The destination "good" accepts the second
// attempt, and "gone" refuses the delivery. run waits until both deliveries have ended, and
// returns the headers of the second webhook to "good".
func run(t *testing.T, tracer *Tracer, traceparent string, tracestate ...string) (good http.Header) {
	t.Helper()
	network := webhooktest.NewNetwork()
	defer network.Close()
	toGood := network.Receiver("http://good.example/hook", "", step.Answer(503), step.Answer(200))
	network.Receiver("http://gone.example/hook", "", step.Answer(410))
	observer := &ends{tracer.Deliveries, make(chan webhook.Record, 2)}
	forwarder, err := webhook.New(webhook.Config{
		Store: testkit.Must(memqueue.Open(memqueue.Config{})),
		Destinations: []webhook.Destination{
			{ID: "good", Endpoints: []webhook.Endpoint{{URL: "http://good.example/hook?secret"}}},
			{ID: "gone", Endpoints: []webhook.Endpoint{{URL: "http://gone.example/hook"}}},
		},
		DialContext: network.DialContext,
		Observers:   []webhook.Observer{observer},
	})
	if err != nil {
		t.Fatal(err)
	}
	handler, err := collector.New(collector.Config{
		Forwarder: tracer.Deliveries.Forwarder(forwarder),
		Sources:   collector.Keys(map[string]collector.Source{"key": {Destinations: []string{"good", "gone"}}}),
		Answered:  tracer.Answered,
	})
	if err != nil {
		t.Fatal(err)
	}
	ran := make(chan error, 1)
	go func() { ran <- forwarder.Run(context.Background()) }()
	front, url := serve(t, tracer.Handler(handler))
	client := &http.Client{Transport: &http.Transport{DialContext: front.DialContext, DisableKeepAlives: true}}

	body := `{"writeKey":"key","batch":[{"type":"track","userId":"u1","event":"Paid","messageId":"m1"}]}`
	r, err := http.NewRequest(http.MethodPost, url+"/v1/batch", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if traceparent != "" {
		r.Header.Set("traceparent", traceparent)
	}
	for _, state := range tracestate {
		r.Header.Add("tracestate", state)
	}
	a, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	a.Body.Close()
	if a.StatusCode != http.StatusOK {
		t.Fatalf("the answer to the call is %s, want 200", a.Status)
	}
	for range 2 {
		<-observer.ended
	}
	if err := forwarder.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
	if err := <-ran; err != nil {
		t.Error(err)
	}
	return toGood.Requests()[1].Header
}

func start(t *testing.T, c Config) *Tracer {
	t.Helper()
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	tracer, err := Start(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	return tracer
}

const (
	traceID = "4bf92f3577b34da6a3ce929d0e0e4736"
	caller  = "00f067aa0ba902b7"
)

// TestCallIsOneTrace shows that a call makes one trace, from the client's span to the webhook's.
// The spans have the times at which things happened.
func TestCallIsOneTrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := newReceiver(t)
		tracer := to.start(t, "/base/", Config{Tracing: config.Tracing{Headers: map[string]signature.Secret{"Authorization": "Bearer t0ken"}, Sample: 1, TrustClients: true}, Version: "v1.2.3"})
		begun := time.Now()
		header := run(t, tracer, "00-"+traceID+"-"+caller+"-01")
		if err := tracer.Shutdown(context.Background()); err != nil {
			t.Fatal(err)
		}

		if to.path != "/base/v1/traces" || to.header.Get("Authorization") != "Bearer t0ken" {
			t.Errorf("the tracer sent to %s with the headers %q, want /base/v1/traces and the token", to.path, to.header)
		}
		if to.resource["service.name"] != "hookferry" || to.resource["service.version"] != "v1.2.3" {
			t.Errorf("the resource is %v, want hookferry v1.2.3", to.resource)
		}
		type row struct {
			Name, Parent, Kind string
			Failed             bool
			Attributes         map[string]string
		}
		names := map[string]string{caller: "client"}
		for _, s := range to.spans {
			names[hex.EncodeToString(s.SpanId)] = s.Name
		}
		var got []row
		for _, s := range to.spans {
			if hex.EncodeToString(s.TraceId) != traceID {
				t.Errorf("span %s belongs to the trace %x, want %s", s.Name, s.TraceId, traceID)
			}
			from, until := time.Unix(0, int64(s.StartTimeUnixNano)), time.Unix(0, int64(s.EndTimeUnixNano))
			if from.Before(begun.Add(-time.Second)) || until.Before(from) || until.After(time.Now()) {
				t.Errorf("span %s lasts from %v to %v, want times within the test", s.Name, from, until)
			}
			kind := strings.ToLower(strings.TrimPrefix(s.Kind.String(), "SPAN_KIND_"))
			got = append(got, row{s.Name, names[hex.EncodeToString(s.ParentSpanId)], kind, s.Status.GetCode() == tracepb.Status_STATUS_CODE_ERROR, attributes(s.Attributes)})
		}
		of := func(destination string, more ...string) map[string]string {
			m := map[string]string{"hookferry.destination": destination, "hookferry.message_id": "m1", "hookferry.type": "track"}
			for i := 0; i < len(more); i += 2 {
				m[more[i]] = more[i+1]
			}
			return m
		}
		request := func(destination, try, outcome, status string, more ...string) map[string]string {
			return of(destination, append(more, "hookferry.try", try, "hookferry.outcome", outcome, "http.response.status_code", status,
				"http.request.method", "POST", "url.full", "http://"+destination+".example/hook", "server.address", destination+".example", "server.port", "80")...)
		}
		want := []row{
			{"receive", "client", "server", false, map[string]string{"http.request.method": "POST", "http.response.status_code": "200", "url.scheme": "http"}},
			{"put", "receive", "internal", false, map[string]string{"hookferry.events": "1", "hookferry.destinations": "2"}},
			{"attempt", "put", "client", true, request("good", "1", "retryable", "503", "error.type", "server_error")},
			{"attempt", "put", "client", false, request("good", "2", "delivered", "200", "http.request.resend_count", "1")},
			{"attempt", "put", "client", true, request("gone", "1", "permanent", "410", "error.type", "refused")},
			{"deliver", "put", "internal", false, of("good")},
			{"deliver", "put", "internal", true, of("gone", "error.type", "refused")},
		}
		order := func(rows []row) {
			slices.SortFunc(rows, func(a, b row) int {
				key := func(r row) string {
					return r.Name + r.Attributes["hookferry.destination"] + r.Attributes["hookferry.try"]
				}
				return strings.Compare(key(a), key(b))
			})
		}
		order(got)
		order(want)
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("spans (-want +got):\n%s", d)
		}
		for id, name := range names {
			if want := "00-" + traceID + "-" + id + "-01"; name == "put" && header.Get("traceparent") != want {
				t.Errorf("the webhook's traceparent is %q, want %q", header.Get("traceparent"), want)
			}
		}
	})
}

// TestSampleDecidesForOwnTraces shows that the setting sample decides for traces that begin at the
// server. Trusted clients decide for their own traces. The webhook passes the decision on.
func TestSampleDecidesForOwnTraces(t *testing.T) {
	for _, tt := range []struct {
		name, parent string
		trust        bool
		sample       float64
		spans        int
		flags        string
	}{
		{"none", "", true, 0, 0, "00"},
		{"all", "", true, 1, 7, "01"},
		{"none, but a trusted caller samples", "00-" + traceID + "-" + caller + "-01", true, 0, 7, "01"},
		{"all, but a trusted caller does not sample", "00-" + traceID + "-" + caller + "-00", true, 1, 0, "00"},
		{"a caller with a wrong traceparent", "00-0-0-01", true, 0, 0, "00"},
		{"none, and an untrusted caller samples", "00-" + traceID + "-" + caller + "-01", false, 0, 0, "00"},
		{"all, and an untrusted caller does not sample", "00-" + traceID + "-" + caller + "-00", false, 1, 7, "01"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				to := newReceiver(t)
				tracer := to.start(t, "", Config{Tracing: config.Tracing{Sample: tt.sample, TrustClients: tt.trust}})
				header := run(t, tracer, tt.parent)
				if err := tracer.Shutdown(context.Background()); err != nil {
					t.Fatal(err)
				}
				if len(to.spans) != tt.spans {
					t.Errorf("%d spans, want %d", len(to.spans), tt.spans)
				}
				if got := header.Get("traceparent"); !strings.HasSuffix(got, "-"+tt.flags) {
					t.Errorf("the webhook's traceparent is %q, want the flags %s", got, tt.flags)
				}
			})
		})
	}
}

// TestUntrustedClientsAreOnlyLinked shows that the server links to the span of an untrusted client.
// Webhooks carry neither the trace nor the tracestate of that client.
func TestUntrustedClientsAreOnlyLinked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := newReceiver(t)
		tracer := to.start(t, "", Config{Tracing: config.Tracing{Sample: 1}})
		header := run(t, tracer, "00-"+traceID+"-"+caller+"-01", "a=1")
		if err := tracer.Shutdown(context.Background()); err != nil {
			t.Fatal(err)
		}
		if parent, state := header.Get("traceparent"), header.Get("tracestate"); len(parent) != 55 || strings.Contains(parent, traceID) || state != "" {
			t.Errorf("the webhook has the traceparent %q and the tracestate %q, want another trace and no state", parent, state)
		}
		for _, s := range to.spans {
			if id := hex.EncodeToString(s.TraceId); id == traceID {
				t.Errorf("span %s belongs to the client's trace, want another trace", s.Name)
			}
			if s.Name != "receive" {
				continue
			}
			if len(s.ParentSpanId) != 0 || len(s.Links) != 1 {
				t.Fatalf("the span receive has the parent %x and the links %v, want no parent and one link", s.ParentSpanId, s.Links)
			}
			if l := s.Links[0]; hex.EncodeToString(l.TraceId) != traceID || hex.EncodeToString(l.SpanId) != caller {
				t.Errorf("the span receive is linked to %v, want the client's span", l)
			}
		}
	})
}

// TestTraceStateIsBounded shows that webhooks carry a client's tracestate within the bounds of W3C
// Trace Context.
func TestTraceStateIsBounded(t *testing.T) {
	member := func(n, size int) string { return fmt.Sprintf("k%d=%s", n, strings.Repeat("v", size)) }
	var many []string
	for i := range 33 {
		many = append(many, member(i, 1))
	}
	for _, tt := range []struct {
		name  string
		state []string
		want  string
	}{
		{"two headers", []string{"a=1 , b=2", "c=3"}, "a=1,b=2,c=3"},
		{"the most members", []string{strings.Join(many[:32], ",")}, strings.Join(many[:32], ",")},
		{"too many", []string{strings.Join(many, ",")}, ""},
		{"long", []string{member(1, 200) + "," + member(2, 200), member(3, 200)}, member(1, 200) + "," + member(2, 200)},
		{"one member that is too long", []string{member(1, 10_000)}, ""},
		{"malformed", []string{"a=1,B=2"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tracer := newReceiver(t).start(t, "", Config{Tracing: config.Tracing{Sample: 1, TrustClients: true}})
				header := run(t, tracer, "00-"+traceID+"-"+caller+"-01", tt.state...)
				if err := tracer.Shutdown(context.Background()); err != nil {
					t.Fatal(err)
				}
				if got := header.Get("tracestate"); got != tt.want || !strings.Contains(header.Get("traceparent"), traceID) {
					t.Errorf("the webhook has the traceparent %q and the tracestate %q, want %q", header.Get("traceparent"), got, tt.want)
				}
			})
		})
	}
}

// TestHangingReceiverDelaysOnlyShutdown shows that a receiver of traces that does not answer delays
// only Shutdown, until its context ends.
func TestHangingReceiverDelaysOnlyShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		network, url := serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
		defer close(release)
		tracer := start(t, Config{Tracing: config.Tracing{Endpoint: url, Sample: 1}, Dial: network.DialContext})
		attempted := webhook.Attempted{Delivery: webhook.Delivery{Trace: event.Trace{Parent: "00-" + traceID + "-" + caller + "-01"}}}
		for range 10_000 { // the queue has room for 2,048
			tracer.Deliveries.Attempted(attempted)
		}
		began := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		if err := tracer.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Shutdown = %v, want %v", err, context.DeadlineExceeded)
		}
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("the spans and Shutdown took %v, want 3s", took)
		}
	})
}

// export sends a span with headers to a receiver that answers by handle. It returns the log.
func export(t *testing.T, headers map[string]signature.Secret, handle http.HandlerFunc) (log string) {
	synctest.Test(t, func(t *testing.T) {
		network, url := serve(t, handle)
		var text bytes.Buffer
		tracer := start(t, Config{
			Tracing: config.Tracing{Endpoint: url, Headers: headers, Sample: 1},
			Dial:    network.DialContext, Logger: slog.New(slog.NewTextHandler(&text, nil)),
		})
		tracer.Deliveries.Ended(webhook.Record{Delivery: webhook.Delivery{Trace: event.Trace{Parent: "00-" + traceID + "-" + caller + "-01"}}})
		if err := tracer.Shutdown(context.Background()); err != nil {
			text.WriteString(err.Error())
		}
		log = text.String()
	})
	return log
}

// TestRefusalIsLoggedWithoutHeaders shows that the log names the status of a receiver that refuses
// traces, and does not name the headers.
func TestRefusalIsLoggedWithoutHeaders(t *testing.T) {
	log := export(t, map[string]signature.Secret{"Authorization": "Bearer t0ken"}, func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "who is Bearer t0ken?", http.StatusUnauthorized)
	})
	if !strings.Contains(log, "401") || strings.Contains(log, "t0ken") {
		t.Errorf("the log must have the status 401 and not the token: %s", log)
	}
}

// TestRefusalIsLoggedWithoutSecretsOfHeaders shows that the log does not have the secrets of
// headers, even if the receiver repeats them: neither a token without the word Bearer, nor the
// header of an environment variable.
func TestRefusalIsLoggedWithoutSecretsOfHeaders(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "X-Api-Key=s3cret%20word,X-Tenant=1")
	t.Setenv("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "X-Team-Key=k3y-of-team")
	log := export(t, map[string]signature.Secret{"Authorization": "Bearer t0ken"}, func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "unknown t0ken, s3cret word or k3y-of-team", http.StatusUnauthorized)
	})
	for _, secret := range []string{"t0ken", "s3cret", "k3y-of-team"} {
		if strings.Contains(log, secret) {
			t.Errorf("the log has the secret %q: %s", secret, log)
		}
	}
	if !strings.Contains(log, "401") {
		t.Errorf("the log lacks the status 401: %s", log)
	}
}

// TestRedirectIsNotFollowed shows that the tracer does not follow a redirect, whose request would
// carry all headers. The log does not have the URL of the redirect, which may hold secrets.
func TestRedirectIsNotFollowed(t *testing.T) {
	followed := 0
	log := export(t, map[string]signature.Secret{"X-Api-Key": "t0ken"}, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/away" {
			followed++
			return
		}
		http.Redirect(w, r, "http://user:p4ss@"+r.Host+"/away?key=s3cret", http.StatusTemporaryRedirect)
	})
	if followed > 0 || !strings.Contains(log, "redirects are not followed") {
		t.Errorf("the tracer followed %d redirects, want none, and a log that says so; log: %s", followed, log)
	}
	for _, secret := range []string{"user", "p4ss", "s3cret", "t0ken"} {
		if strings.Contains(log, secret) {
			t.Errorf("the log has the secret %q: %s", secret, log)
		}
	}
}

// TestProxyRefusesRedirects shows that the exporter's own client, which is used without a Dial,
// does not follow redirects either.
func TestProxyRefusesRedirects(t *testing.T) {
	first := &http.Request{URL: &url.URL{Scheme: "http", Host: "localhost:4318"}}
	if u, err := proxy(first); u != nil || err != nil {
		t.Errorf("proxy of a first request = %v, %v, want no proxy and no error", u, err)
	}
	second := &http.Request{URL: first.URL, Response: &http.Response{StatusCode: 308}}
	if _, err := proxy(second); err == nil {
		t.Error("proxy of a redirect returned no error")
	}
}

// TestWrongVariablesAreLoggedWithoutValues shows that the log names wrong variables of
// OpenTelemetry, but not their values.
func TestWrongVariablesAreLoggedWithoutValues(t *testing.T) {
	for name, value := range map[string]string{
		"OTEL_EXPORTER_OTLP_HEADERS":         "s3cret",
		"OTEL_EXPORTER_OTLP_ENDPOINT":        "http://user:s3cret@%zz",
		"OTEL_EXPORTER_OTLP_TRACES_TIMEOUT":  "s3cret",
		"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://us er:s3cret@localhost",
	} {
		t.Setenv(name, value)
	}
	var log bytes.Buffer
	tracer := start(t, Config{Tracing: config.Tracing{Sample: 1}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err := tracer.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if text := log.String(); strings.Count(text, "is wrong and has no effect") != 4 || strings.Contains(text, "s3cret") {
		t.Errorf("the log must have 4 wrong variables and no secret:\n%s", text)
	}
}

// TestRefusedPutIsAFailedSpan shows that a failing store makes failed spans, with the status of the
// answer.
func TestRefusedPutIsAFailedSpan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := newReceiver(t)
		tracer := to.start(t, "", Config{Tracing: config.Tracing{Sample: 1}})
		handler, err := collector.New(collector.Config{
			Forwarder: tracer.Deliveries.Forwarder(fullForwarder{}),
			Sources:   collector.Keys(map[string]collector.Source{"key": {Destinations: []string{"a"}}}),
			Answered:  tracer.Answered,
		})
		if err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodPost, "/v1/track", strings.NewReader(`{"writeKey":"key","userId":"u1","event":"Paid"}`))
		tracer.Handler(handler).ServeHTTP(w, r)
		// A request for settings has a write key in its path. It makes no span.
		tracer.Handler(handler).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/v1/projects/key/settings", nil))
		if err := tracer.Shutdown(context.Background()); err != nil {
			t.Fatal(err)
		}
		if len(to.spans) != 2 {
			t.Fatalf("%d spans, want 2", len(to.spans))
		}
		for _, s := range to.spans {
			if s.Status.GetCode() != tracepb.Status_STATUS_CODE_ERROR {
				t.Errorf("span %s has the status %v, want an error", s.Name, s.Status)
			}
			if of := attributes(s.Attributes); s.Name == "receive" && (of["http.response.status_code"] != "503" || of["error.type"] != "503") {
				t.Errorf("span %s has the attributes %v, want the status 503", s.Name, of)
			}
		}
	})
}

// A fullForwarder refuses all events.
type fullForwarder struct{}

func (fullForwarder) ForwardEvents(context.Context, []string, ...event.Event) error {
	return webhook.ErrQueueFull
}

func TestWanted(t *testing.T) {
	for _, tt := range []struct {
		name, endpoint string
		env            map[string]string
		want           bool
	}{
		{"nothing", "", nil, false},
		{"settings", "http://localhost:4318", nil, true},
		{"environment", "", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"}, true},
		{"environment, for traces only", "", map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://localhost:4318/x"}, true},
		{"switched off", "http://localhost:4318", map[string]string{"OTEL_SDK_DISABLED": "true"}, false},
	} {
		if got := Wanted(tt.endpoint, func(name string) string { return tt.env[name] }); got != tt.want {
			t.Errorf("%s: Wanted = %v, want %v", tt.name, got, tt.want)
		}
	}
}
