// Package tracing tells OpenTelemetry what becomes of a call, as one trace:
//
//	receive        a request of a client, below the span that its traceparent names
//	└ put          its calls are made durable
//	  ├ attempt    one request to an endpoint
//	  └ deliver    a delivery, from put until it was delivered or given up
//
// Deliveries are stored with the context of put, so that attempts after a
// restart, and hours later, are in the trace as well.
package tracing

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/hookferry/analytics/collector"
	"github.com/hookferry/analytics/webhook"
)

// Config says where traces go. OpenTelemetry's own environment variables
// (OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES, OTEL_EXPORTER_OTLP_...,
// OTEL_TRACES_SAMPLER, OTEL_BSP_...) count for what it leaves out.
type Config struct {
	// Endpoint is the base URL of an OTLP receiver, without /v1/traces. Empty
	// means that of the environment.
	Endpoint string
	// Headers are added to each request to it.
	Headers map[string]string
	// Sample is the part of the traces that begin here which are recorded, from
	// 0 to 1; of a client's trace it is the client that decides. At 1 the sampler
	// of the environment counts, which records all unless it says otherwise.
	Sample float64
	// Version is that of the program.
	Version string
	// Logger is told when traces cannot be sent. Required.
	Logger *slog.Logger
}

// Wanted reports whether traces are asked for: by an endpoint in the settings or
// in the environment.
func Wanted(endpoint string, getenv func(string) string) bool {
	return getenv("OTEL_SDK_DISABLED") != "true" &&
		(endpoint != "" || getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != "")
}

// A Tracer makes the spans. Nothing waits for them to be sent: they go out in
// batches, and are dropped while 2,048 wait (OTEL_BSP_MAX_QUEUE_SIZE). It is
// safe for concurrent use.
type Tracer struct {
	provider *sdk.TracerProvider
	tracer   trace.Tracer
}

var _ webhook.Observer = (*Tracer)(nil)

// Start returns a Tracer. The receiver of the traces need not be there.
func Start(ctx context.Context, c Config) (*Tracer, error) {
	var to []otlptracehttp.Option
	if c.Endpoint != "" {
		u, err := url.Parse(c.Endpoint)
		if err != nil {
			return nil, fmt.Errorf("tracing: the endpoint is no URL")
		}
		to = append(to, otlptracehttp.WithEndpointURL(u.JoinPath("v1", "traces").String()))
	}
	if len(c.Headers) > 0 {
		to = append(to, otlptracehttp.WithHeaders(c.Headers))
	}
	exporter, err := otlptracehttp.New(ctx, to...)
	if err != nil {
		return nil, fmt.Errorf("tracing: %w", err)
	}
	self, err := resource.New(ctx,
		resource.WithAttributes(attribute.String("service.name", "hookferry"), attribute.String("service.version", c.Version)),
		resource.WithTelemetrySDK(), resource.WithHost(), resource.WithFromEnv())
	if err != nil {
		// What could be found out is there.
		c.Logger.Warn("tracing: the resource is not known in whole", "error", err)
	}
	options := []sdk.TracerProviderOption{sdk.WithBatcher(exporter), sdk.WithResource(self)}
	if c.Sample < 1 {
		options = append(options, sdk.WithSampler(sdk.ParentBased(sdk.TraceIDRatioBased(c.Sample))))
	}
	// The exporter has no other way to tell.
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { c.Logger.Warn("tracing: spans were lost", "error", err) }))
	provider := sdk.NewTracerProvider(options...)
	return &Tracer{provider, provider.Tracer("github.com/hookferry/analytics/cmd/hookferry")}, nil
}

// Shutdown sends what waits, until ctx is done. Spans that end afterwards are
// dropped.
func (t *Tracer) Shutdown(ctx context.Context) error {
	if err := t.provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("tracing: %w", err)
	}
	return nil
}

// Handler makes a span of each request of next that carries calls. The path is
// not in it: it may hold a write key.
func (t *Tracer) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			next.ServeHTTP(w, r)
			return
		}
		ctx := propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
		ctx, span := t.tracer.Start(ctx, "receive", trace.WithSpanKind(trace.SpanKindServer),
			trace.WithAttributes(attribute.String("http.request.method", r.Method)))
		defer span.End()
		answer := &answer{ResponseWriter: w, status: http.StatusOK}
		next.ServeHTTP(answer, r.WithContext(ctx))
		span.SetAttributes(attribute.Int("http.response.status_code", answer.status))
		if answer.status >= 500 {
			span.SetStatus(codes.Error, "")
		}
	})
}

// An answer notes the status.
type answer struct {
	http.ResponseWriter
	status int
}

func (a *answer) WriteHeader(status int) {
	if status >= 200 {
		a.status = status
	}
	a.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// Forwarder makes a span of each ForwardEvents of next.
func (t *Tracer) Forwarder(next collector.Forwarder) collector.Forwarder {
	return &forwarder{t, next}
}

type forwarder struct {
	*Tracer
	next collector.Forwarder
}

func (f *forwarder) ForwardEvents(ctx context.Context, destinations []string, events ...webhook.Event) error {
	ctx, span := f.tracer.Start(ctx, "put", trace.WithAttributes(
		attribute.Int("hookferry.events", len(events)), attribute.Int("hookferry.destinations", len(destinations))))
	defer span.End()
	err := f.next.ForwardEvents(ctx, destinations, events...)
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	return err
}

// Trace is for webhook.Config.Trace: it returns the headers of the span in ctx.
func (t *Tracer) Trace(ctx context.Context) (traceparent, tracestate string) {
	headers := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, headers)
	return headers["traceparent"], headers["tracestate"]
}

// parent returns a context with the span that a delivery was put in, and
// whether it is recorded.
func parent(t webhook.Trace) (context.Context, bool) {
	headers := propagation.MapCarrier{"traceparent": t.Parent, "tracestate": t.State}
	ctx := propagation.TraceContext{}.Extract(context.Background(), headers)
	return ctx, trace.SpanContextFromContext(ctx).IsSampled()
}

// Accepted implements webhook.Observer.
func (t *Tracer) Accepted(webhook.Accepted) {}

// Attempted implements webhook.Observer.
func (t *Tracer) Attempted(a webhook.Attempted) {
	ctx, recorded := parent(a.Trace)
	if !recorded {
		return
	}
	attributes := append(about(a.Destination, a.ID, a.Type),
		attribute.Int("hookferry.try", a.Try),
		attribute.String("hookferry.outcome", string(a.Outcome)),
		attribute.String("http.request.method", http.MethodPost),
		attribute.String("url.full", a.Endpoint))
	if a.Status != 0 {
		attributes = append(attributes, attribute.Int("http.response.status_code", a.Status))
	}
	if a.Reason != "" {
		attributes = append(attributes, attribute.String("error.type", string(a.Reason)))
	}
	_, span := t.tracer.Start(ctx, "attempt", trace.WithSpanKind(trace.SpanKindClient),
		trace.WithTimestamp(a.At), trace.WithAttributes(attributes...))
	if a.Reason != "" {
		span.SetStatus(codes.Error, a.Error)
	}
	span.End(trace.WithTimestamp(a.At.Add(a.Took)))
}

// Ended implements webhook.Observer.
func (t *Tracer) Ended(e webhook.Ended) {
	d := &e.Delivery
	ctx, recorded := parent(d.Trace)
	if !recorded {
		return
	}
	_, span := t.tracer.Start(ctx, "deliver", trace.WithTimestamp(d.Accepted), trace.WithAttributes(about(d.Destination, d.ID, d.Type)...))
	if e.Reason != "" {
		span.SetAttributes(attribute.String("error.type", string(e.Reason)))
		span.SetStatus(codes.Error, "given up: "+string(e.Reason))
	}
	span.End(trace.WithTimestamp(latest(e.At, d.Accepted)))
}

// latest keeps a span whose clock was set back from ending before it began.
func latest(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// about are the attributes that say which delivery a span is of.
func about(destination, id, kind string) []attribute.KeyValue {
	return []attribute.KeyValue{
		attribute.String("hookferry.destination", destination),
		attribute.String("hookferry.message_id", id),
		attribute.String("hookferry.type", kind),
	}
}
