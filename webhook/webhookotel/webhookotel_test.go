package webhookotel

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/step"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/memqueue"
	"github.com/hookferry/analytics/webhook/webhooktest"
)

const (
	traceID = "4bf92f3577b34da6a3ce929d0e0e4736"
	caller  = "00f067aa0ba902b7"
)

// record returns a provider of a program, and what it recorded.
func record(options ...sdk.TracerProviderOption) (*sdk.TracerProvider, *tracetest.SpanRecorder) {
	spans := tracetest.NewSpanRecorder()
	return sdk.NewTracerProvider(append(options, sdk.WithSpanProcessor(spans))...), spans
}

// A row is what the tests compare of a span.
type row struct {
	Name, Parent, Kind string
	Failed             bool
	Attributes         map[string]string
}

// rows returns the spans that ended, sorted by name and try. Parent is the name of the parent.
func rows(spans *tracetest.SpanRecorder) (all []row) {
	names := map[trace.SpanID]string{}
	for _, s := range spans.Ended() {
		names[s.SpanContext().SpanID()] = s.Name()
	}
	for _, s := range spans.Ended() {
		attributes := map[string]string{}
		for _, kv := range s.Attributes() {
			attributes[string(kv.Key)] = kv.Value.String()
		}
		all = append(all, row{s.Name(), names[s.Parent().SpanID()], s.SpanKind().String(), s.Status().Code == codes.Error, attributes})
	}
	slices.SortFunc(all, func(a, b row) int {
		return strings.Compare(a.Name+a.Attributes["hookferry.try"], b.Name+b.Attributes["hookferry.try"])
	})
	return all
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

// forward forwards a call with ctx to a receiver that takes the second attempt. It waits until the
// delivery has ended, and returns the headers of the second request.
func forward(t *testing.T, ctx context.Context, tracer *Tracer) http.Header {
	t.Helper()
	network := webhooktest.NewNetwork()
	defer network.Close()
	ended := make(chan webhook.Record, 1)
	acme := network.Receiver("http://acme.example/hook", "", step.Answer(503), step.Answer(200))
	forwarder, err := webhook.New(webhook.Config{
		Store:        testkit.Must(memqueue.Open(memqueue.Config{})),
		Destinations: []webhook.Destination{{ID: "acme", Endpoints: []webhook.Endpoint{{URL: "http://user:pass@acme.example/hook?secret"}}}},
		DialContext:  network.DialContext,
		Observers:    []webhook.Observer{&ends{tracer, ended}},
	})
	if err != nil {
		t.Fatal(err)
	}
	ran := make(chan error, 1)
	go func() { ran <- forwarder.Run(context.Background()) }()
	if err := forwarder.Forward(ctx, "acme", &analytics.Track{MessageId: "m1", UserId: "u1", Event: "Paid"}); err != nil {
		t.Fatal(err)
	}
	<-ended
	if err := forwarder.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
	if err := <-ran; err != nil {
		t.Error(err)
	}
	return acme.Requests()[1].Header
}

// TestSpansAreChildrenOfTheCallersSpan shows the spans of a delivery that a program forwards within
// a span of its own, and that the receiver gets that span.
func TestSpansAreChildrenOfTheCallersSpan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		provider, spans := record()
		ctx, span := provider.Tracer("program").Start(t.Context(), "order")
		header := forward(t, Context(ctx), New(provider))
		span.End()

		of := func(more ...string) map[string]string {
			m := map[string]string{"hookferry.destination": "acme", "hookferry.message_id": "m1", "hookferry.type": "track"}
			for i := 0; i < len(more); i += 2 {
				m[more[i]] = more[i+1]
			}
			return m
		}
		request := func(try, outcome, status string, more ...string) map[string]string {
			return of(append(more, "hookferry.try", try, "hookferry.outcome", outcome, "http.response.status_code", status,
				"http.request.method", "POST", "url.full", "http://acme.example/hook", "server.address", "acme.example", "server.port", "80")...)
		}
		want := []row{
			{"attempt", "order", "client", true, request("1", "retryable", "503", "error.type", "server_error")},
			{"attempt", "order", "client", false, request("2", "delivered", "200", "http.request.resend_count", "1")},
			{"deliver", "order", "internal", false, of()},
			{"order", "", "internal", false, map[string]string{}},
		}
		if d := cmp.Diff(want, rows(spans)); d != "" {
			t.Errorf("spans (-want +got):\n%s", d)
		}
		own := span.SpanContext()
		if got, want := header.Get("traceparent"), fmt.Sprintf("00-%s-%s-01", own.TraceID(), own.SpanID()); got != want {
			t.Errorf("the webhook's traceparent is %q, want %q", got, want)
		}
		for _, s := range spans.Ended() {
			scope := s.InstrumentationScope()
			if s.Name() != "order" && (scope.Version != analytics.Version || scope.SchemaURL != semconv.SchemaURL) {
				t.Errorf("the span %s is of %+v, want the version %s and the schema %s", s.Name(), scope, analytics.Version, semconv.SchemaURL)
			}
		}
	})
}

// TestWithoutASampledSpanThereAreNoSpans shows that the caller's span decides: without one there is
// no trace, and one that is not sampled is only passed on to the receiver.
func TestWithoutASampledSpanThereAreNoSpans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		provider, spans := record(sdk.WithSampler(sdk.NeverSample()))
		if header := forward(t, Context(t.Context()), New(provider)); header.Get("traceparent") != "" {
			t.Errorf("without a span the webhook's traceparent is %q, want none", header.Get("traceparent"))
		}
		ctx, span := provider.Tracer("program").Start(t.Context(), "order")
		header := forward(t, Context(ctx), New(provider))
		span.End()
		if got, id := header.Get("traceparent"), span.SpanContext().TraceID().String(); !strings.Contains(got, id) || !strings.HasSuffix(got, "-00") {
			t.Errorf("the webhook's traceparent is %q, want the trace %s with the flags 00", got, id)
		}
		if got := spans.Started(); len(got) != 0 {
			t.Errorf("%d spans were recorded, want none", len(got))
		}
	})
}

// TestUntracedDeliveriesMakeNoSpans shows that deliveries without a trace, or with a trace that is
// not sampled, make no spans, even if the provider samples everything.
func TestUntracedDeliveriesMakeNoSpans(t *testing.T) {
	provider, spans := record()
	tracer := New(provider)
	for _, parent := range []string{"", "00-" + traceID + "-" + caller + "-00", "x"} {
		tracer.Attempted(webhook.Attempted{Delivery: webhook.Delivery{Trace: event.Trace{Parent: parent}}})
		tracer.Ended(webhook.Record{Delivery: webhook.Delivery{Trace: event.Trace{Parent: parent}}})
	}
	if got := rows(spans); len(got) != 0 {
		t.Errorf("the tracer made the spans %v, want none", got)
	}
}

// TestBatchHasASpanInEachTrace shows that the one request of a batch is a span in the trace of each
// of its deliveries, with the number of its try.
func TestBatchHasASpanInEachTrace(t *testing.T) {
	provider, spans := record()
	other := strings.Repeat("ab", 16)
	delivery := func(id, trace string, tries int) *webhook.Delivery {
		return &webhook.Delivery{Destination: "acme", MessageID: id, Tries: tries, Trace: event.Trace{Parent: "00-" + trace + "-" + caller + "-01"}}
	}
	New(provider).Attempted(webhook.Attempted{Batch: []*webhook.Delivery{delivery("m1", traceID, 0), delivery("m2", other, 2)}})
	var got []string
	for i, r := range rows(spans) {
		got = append(got, fmt.Sprint(r.Attributes["hookferry.message_id"], " ", spans.Ended()[i].SpanContext().TraceID(),
			" try ", r.Attributes["hookferry.try"], " of ", r.Attributes["hookferry.batch.size"]))
	}
	if want := []string{"m1 " + traceID + " try 1 of 2", "m2 " + other + " try 3 of 2"}; !slices.Equal(got, want) {
		t.Errorf("spans %q, want %q", got, want)
	}
}

// TestForwarderMakesThePut shows that the span of a Forwarder fails if the store fails, and is the
// parent of the spans of the stored deliveries.
func TestForwarderMakesThePut(t *testing.T) {
	for _, want := range []error{nil, webhook.ErrQueueFull} {
		provider, spans := record()
		ctx, span := provider.Tracer("program").Start(t.Context(), "order")
		next := &keeper{err: want}
		err := New(provider).Forwarder(next).ForwardEvents(ctx, []string{"a", "b"}, event.Event{})
		span.End()
		if err != want {
			t.Errorf("ForwardEvents = %v, want %v", err, want)
		}
		attributes := map[string]string{"hookferry.events": "1", "hookferry.destinations": "2"}
		if d := cmp.Diff([]row{{"order", "", "internal", false, map[string]string{}}, {"put", "order", "internal", want != nil, attributes}}, rows(spans)); d != "" {
			t.Errorf("spans (-want +got):\n%s", d)
		}
		if put := spans.Ended()[0].SpanContext(); next.stored.Parent != fmt.Sprintf("00-%s-%s-01", put.TraceID(), put.SpanID()) {
			t.Errorf("the events were stored with the trace %v, want the span put, %v", next.stored, put)
		}
	}
}

// A keeper is a collector.Forwarder that keeps the trace of the context, and returns an error.
type keeper struct {
	stored event.Trace
	err    error
}

func (f *keeper) ForwardEvents(ctx context.Context, _ []string, _ ...event.Event) error {
	f.stored = event.TraceOf(ctx)
	return f.err
}

// TestServerPortFollowsScheme shows that a URL without a port has the port of its scheme.
func TestServerPortFollowsScheme(t *testing.T) {
	for endpoint, want := range map[string]string{
		"https://crm.example/hook":    "crm.example 443",
		"http://crm.example/":         "crm.example 80",
		"https://[::1]:8443/hook":     "::1 8443",
		"":                            "",
		"https://b\u00fccher.example": "b\u00fccher.example 443",
	} {
		got := ""
		for _, kv := range server(endpoint) {
			if kv.Key != "url.full" {
				got = strings.TrimSpace(got + " " + kv.Value.String())
			}
		}
		if got != want {
			t.Errorf("server(%q) = %q, want %q", endpoint, got, want)
		}
	}
}

// TestSpansReplaceInvalidUTF8 shows that names that are not UTF-8 become valid, as a receiver of
// traces refuses a batch that has others.
func TestSpansReplaceInvalidUTF8(t *testing.T) {
	provider, spans := record()
	tracer := New(provider)
	trace, now := event.Trace{Parent: "00-" + traceID + "-" + caller + "-01"}, time.Now()
	tracer.Attempted(webhook.Attempted{Delivery: webhook.Delivery{Destination: "c\xffm", MessageID: "m\xff", Type: "t\xff", Trace: trace}, Attempt: webhook.Attempt{At: now}})
	tracer.Ended(webhook.Record{At: now, Delivery: webhook.Delivery{Destination: "crm", MessageID: "m1", Type: "track", Trace: trace, Accepted: now}})
	var got []string
	for _, s := range rows(spans) {
		got = append(got, fmt.Sprintf("%s %s %s %s", s.Name, s.Attributes["hookferry.destination"], s.Attributes["hookferry.message_id"], s.Attributes["hookferry.type"]))
	}
	if want := []string{"attempt c\uFFFDm m\uFFFD t\uFFFD", "deliver crm m1 track"}; !slices.Equal(got, want) {
		t.Errorf("spans %q, want %q", got, want)
	}
}
