// Package webhookotel makes OpenTelemetry spans of the requests and deliveries of a
// webhook.Forwarder, in three lines:
//
//	tracer := webhookotel.New(otel.GetTracerProvider())
//	forwarder, err := webhook.New(webhook.Config{Store: store, Destinations: all, Observers: []webhook.Observer{tracer}})
//	err = forwarder.Forward(webhookotel.Context(ctx), "acme", call) // and likewise Send, SendTx and others
//
// The span in ctx is the parent of these spans:
//
//	attempt    one request to an endpoint
//	deliver    a delivery, from its acceptance until it was delivered or given up
//
// Deliveries are stored with their trace, so the trace also has the attempts after a restart. Names
// and attributes are those in docs/tracing.md: the stable conventions of OpenTelemetry for HTTP,
// and hookferry.* for what these do not name. No span has a body, a secret, or the user or query of
// a URL. The server uses this package, too.
package webhookotel

import (
	"context"
	"net/url"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/collector"
	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/webhook"
)

// A Tracer is a webhook.Observer that makes spans of attempts and deliveries. It is safe for
// concurrent use, and several forwarders may share it.
type Tracer struct{ tracer trace.Tracer }

var _ webhook.Observer = (*Tracer)(nil)

// New returns a Tracer that makes its spans with a provider. The provider is required. It samples
// and sends the spans, and its owner shuts it down after the forwarder.
func New(provider trace.TracerProvider) *Tracer {
	return &Tracer{provider.Tracer("github.com/hookferry/analytics/webhook/webhookotel",
		trace.WithInstrumentationVersion(analytics.Version), trace.WithSchemaURL(semconv.SchemaURL))}
}

// Context returns a context with which a webhook.Forwarder stores the span in ctx with each event.
// The spans of a Tracer become children of that span if it is sampled, and receivers get it in the
// headers traceparent and tracestate. If ctx has no span, Context returns ctx.
func Context(ctx context.Context) context.Context {
	headers := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, headers)
	return event.ContextWithTrace(ctx, headers["traceparent"], headers["tracestate"])
}

// Forwarder returns a collector.Forwarder that makes a span put of each call of next. The span ends
// when the events are durable, and is the parent of the spans of their deliveries.
func (t *Tracer) Forwarder(next collector.Forwarder) collector.Forwarder {
	return &forwarder{t.tracer, next}
}

type forwarder struct {
	tracer trace.Tracer
	next   collector.Forwarder
}

func (f *forwarder) ForwardEvents(ctx context.Context, destinations []string, events ...event.Event) error {
	ctx, span := f.tracer.Start(ctx, "put", trace.WithAttributes(
		attribute.Int("hookferry.events", len(events)), attribute.Int("hookferry.destinations", len(destinations))))
	defer span.End()
	err := f.next.ForwardEvents(Context(ctx), destinations, events...)
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	return err
}

// parent returns a context with the span that a delivery was stored with, and whether that span is
// recorded.
func parent(t event.Trace) (context.Context, bool) {
	ctx := propagation.TraceContext{}.Extract(context.Background(),
		propagation.MapCarrier{"traceparent": t.Parent, "tracestate": t.State})
	return ctx, trace.SpanContextFromContext(ctx).IsSampled()
}

// Accepted implements webhook.Observer. It does nothing: Forwarder makes the span put.
func (t *Tracer) Accepted(webhook.Accepted) {}

// Attempted implements webhook.Observer. The request of a batch has a span in each trace.
func (t *Tracer) Attempted(a webhook.Attempted) {
	if a.Batch == nil {
		t.attempted(&a, &a.Delivery)
	}
	for _, d := range a.Batch {
		a.Try = d.Tries + 1
		t.attempted(&a, d)
	}
}

func (t *Tracer) attempted(a *webhook.Attempted, d *webhook.Delivery) {
	ctx, recorded := parent(d.Trace)
	if !recorded {
		return
	}
	attributes := append(about(d.Destination, d.MessageID, d.Type),
		attribute.Int("hookferry.try", a.Try),
		attribute.String("hookferry.outcome", string(a.Outcome)),
		semconv.HTTPRequestMethodPost)
	attributes = append(attributes, server(a.Endpoint)...)
	if a.Batch != nil {
		attributes = append(attributes, attribute.Int("hookferry.batch.size", len(a.Batch)))
	}
	if a.Try > 1 {
		attributes = append(attributes, semconv.HTTPRequestResendCount(a.Try-1))
	}
	if a.Status != 0 {
		attributes = append(attributes, semconv.HTTPResponseStatusCode(a.Status))
	}
	if a.Reason != "" {
		attributes = append(attributes, semconv.ErrorTypeKey.String(string(a.Reason)))
	}
	_, span := t.tracer.Start(ctx, "attempt", trace.WithSpanKind(trace.SpanKindClient),
		trace.WithTimestamp(a.At), trace.WithAttributes(attributes...))
	if a.Reason != "" {
		span.SetStatus(codes.Error, a.Error)
	}
	span.End(trace.WithTimestamp(a.End()))
}

// server returns the attributes of an endpoint. The caller has removed user and query from the URL.
func server(endpoint string) []attribute.KeyValue {
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" {
		return nil
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		port = map[string]int{"http": 80, "https": 443}[u.Scheme]
	}
	return []attribute.KeyValue{semconv.URLFull(endpoint), semconv.ServerAddress(u.Hostname()), semconv.ServerPort(port)}
}

// Ended implements webhook.Observer.
func (t *Tracer) Ended(e webhook.Record) {
	d := &e.Delivery
	ctx, recorded := parent(d.Trace)
	if !recorded {
		return
	}
	_, span := t.tracer.Start(ctx, "deliver", trace.WithTimestamp(d.Accepted), trace.WithAttributes(about(d.Destination, d.MessageID, d.Type)...))
	if e.Reason != "" {
		span.SetAttributes(semconv.ErrorTypeKey.String(string(e.Reason)))
		span.SetStatus(codes.Error, "given up: "+string(e.Reason))
	}
	end := e.At
	if end.Before(d.Accepted) { // the clock was set back
		end = d.Accepted
	}
	span.End(trace.WithTimestamp(end))
}

// about returns the attributes that name the delivery of a span, as valid UTF-8. Other programs may
// write other names into a shared store. A receiver of traces would refuse the whole batch of spans
// because of one such name.
func about(destination, id, kind string) []attribute.KeyValue {
	text := func(key, value string) attribute.KeyValue {
		return attribute.String(key, strings.ToValidUTF8(value, "\uFFFD"))
	}
	return []attribute.KeyValue{
		text("hookferry.destination", destination),
		text("hookferry.message_id", id),
		text("hookferry.type", kind),
	}
}
