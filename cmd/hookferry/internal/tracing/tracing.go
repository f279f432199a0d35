// Package tracing makes one OpenTelemetry trace of each request of a client, with the deliveries
// that it causes:
//
//	receive        a request of a client: with TrustClients a child of the client's span,
//	│              which the header traceparent names, otherwise with a link to that span
//	└ put          its calls are made durable
//	  ├ attempt    one request to an endpoint
//	  └ deliver    a delivery, from put until it was delivered or given up
//
// Events of tenants have no put: their attempts and deliver are below receive. Package webhookotel
// makes the spans below receive. This package makes receive, and sends all.
package tracing

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
	"github.com/hookferry/analytics/collector"
	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/webhookotel"
)

// Config says where traces go. All else is in environment variables: OTEL_SERVICE_NAME,
// OTEL_RESOURCE_ATTRIBUTES, OTEL_EXPORTER_OTLP_..., OTEL_TRACES_SAMPLER, OTEL_BSP_...
type Config struct {
	config.Tracing
	Version string       // the version of the program
	Logger  *slog.Logger // gets a warning when traces cannot be sent; required
	// Dial opens the connections to the receiver of traces. Nil means net.Dialer.DialContext.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Wanted reports whether the settings or the environment name a receiver of traces.
func Wanted(endpoint string, getenv func(string) string) bool {
	return getenv("OTEL_SDK_DISABLED") != "true" &&
		(endpoint != "" || getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != "")
}

// A Tracer creates the spans, and sends them in batches in the background. While 2,048 spans wait
// (OTEL_BSP_MAX_QUEUE_SIZE), it drops new ones. It is safe for concurrent use.
type Tracer struct {
	Deliveries *webhookotel.Tracer // makes the spans put, attempt and deliver
	provider   *sdk.TracerProvider
	tracer     trace.Tracer
	trust      bool // spans of clients become parents
}

// Start returns a Tracer. The receiver of the traces may be down.
func Start(ctx context.Context, c Config) (*Tracer, error) {
	// The exporter reports errors only to these global handlers.
	otel.SetLogger(logr.New(sink{c.Logger}))
	secrets := secretsOf(c.Headers)
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		c.Logger.Warn("tracing: spans were lost", "error", withoutSecrets(err, secrets))
	}))
	to := []otlptracehttp.Option{otlptracehttp.WithProxy(proxy)}
	if c.Endpoint != "" {
		u, err := webhook.ParseURL(c.Endpoint)
		if err != nil {
			return nil, fmt.Errorf("tracing: the endpoint %w", err)
		}
		to = append(to, otlptracehttp.WithEndpointURL(u.JoinPath("v1", "traces").String()))
	}
	if len(c.Headers) > 0 {
		headers := make(map[string]string, len(c.Headers))
		for name, value := range c.Headers {
			headers[name] = value.Reveal()
		}
		to = append(to, otlptracehttp.WithHeaders(headers))
	}
	if c.Dial != nil {
		to = append(to, otlptracehttp.WithHTTPClient(&http.Client{Transport: &http.Transport{DialContext: c.Dial, Proxy: proxy}}))
	}
	exporter, err := otlptracehttp.New(ctx, to...)
	if err != nil {
		return nil, fmt.Errorf("tracing: %w", err)
	}
	self, err := resource.New(ctx,
		resource.WithAttributes(attribute.String("service.name", "hookferry"), attribute.String("service.version", c.Version)),
		resource.WithTelemetrySDK(), resource.WithHost(), resource.WithFromEnv())
	if err != nil {
		c.Logger.Warn("tracing: some attributes of the resource are missing from the traces", "error", err)
	}
	options := []sdk.TracerProviderOption{sdk.WithBatcher(exporter), sdk.WithResource(self)}
	if c.Sample < 1 {
		options = append(options, sdk.WithSampler(sdk.ParentBased(sdk.TraceIDRatioBased(c.Sample))))
	}
	provider := sdk.NewTracerProvider(options...)
	tracer := provider.Tracer("github.com/hookferry/analytics/cmd/hookferry", trace.WithSchemaURL(semconv.SchemaURL))
	return &Tracer{webhookotel.New(provider), provider, tracer, c.TrustClients}, nil
}

// proxy returns the proxy for a request of the exporter, by the environment variables. It also
// refuses redirects, which would send all headers to another host. The exporter has no setting
// against them, and with a custom http.Client it ignores the certificates of the environment.
func proxy(r *http.Request) (*url.URL, error) {
	if r.Response != nil {
		return nil, fmt.Errorf("the receiver of traces answered %d, a redirect to %s; redirects are not followed", r.Response.StatusCode, r.URL.Host)
	}
	return http.ProxyFromEnvironment(r)
}

// secretsOf returns the words of all headers that the exporter sends, by the settings and environment
// variables, the longest first: a receiver may repeat a token without the word Bearer before it.
// Words of less than 4 bytes are too short to be secrets.
func secretsOf(headers map[string]signature.Secret) (words []string) {
	for _, value := range headers {
		words = append(words, strings.Fields(value.Reveal())...)
	}
	for _, variable := range []string{"OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"} {
		for header := range strings.SplitSeq(os.Getenv(variable), ",") {
			_, value, _ := strings.Cut(header, "=")
			if value, err := url.PathUnescape(value); err == nil { // otherwise the exporter does not send it
				words = append(words, strings.Fields(value)...)
			}
		}
	}
	slices.SortFunc(words, func(a, b string) int { return len(b) - len(a) })
	return slices.DeleteFunc(words, func(word string) bool { return len(word) < 4 })
}

// withoutSecrets returns the text of an error of the exporter without the URL, which a redirect may
// have chosen, and the secrets of headers, which the receiver may have repeated.
func withoutSecrets(err error, secrets []string) string {
	if ue, ok := errors.AsType[*url.Error](err); ok {
		err = ue.Err
	}
	text := err.Error()
	for _, secret := range secrets {
		text = strings.ReplaceAll(text, secret, "[redacted]")
	}
	return text
}

// A sink logs the problems that OpenTelemetry reports about its environment variables, without the
// values and the errors that quote them: a value may be a header, or a URL with a password.
type sink struct{ logger *slog.Logger }

func (sink) Init(logr.RuntimeInfo)            {}
func (sink) Enabled(int) bool                 { return false }
func (sink) Info(int, string, ...any)         {}
func (s sink) WithValues(...any) logr.LogSink { return s }
func (s sink) WithName(string) logr.LogSink   { return s }
func (s sink) Error(_ error, problem string, _ ...any) {
	s.logger.Warn("tracing: a variable of OpenTelemetry is wrong and has no effect", "problem", problem)
}

// Shutdown sends the remaining spans, until ctx is done. Spans that end later are dropped.
func (t *Tracer) Shutdown(ctx context.Context) error {
	if err := t.provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("tracing: %w", err)
	}
	return nil
}

// Handler makes a span of each request that carries calls, and passes every request on to next. The
// span does not have the path, which may contain a write key.
func (t *Tracer) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			next.ServeHTTP(w, r)
			return
		}
		scheme := "http"
		if r.TLS != nil {
			scheme = "https"
		}
		ctx, options := t.caller(r)
		ctx, span := t.tracer.Start(ctx, "receive", append(options, trace.WithSpanKind(trace.SpanKindServer),
			trace.WithAttributes(semconv.HTTPRequestMethodPost, semconv.URLScheme(scheme)))...)
		defer span.End()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// Answered adds the status to the span of Handler. It is the collector.Config.Answered.
func (t *Tracer) Answered(r *http.Request, a collector.Answered) {
	span := trace.SpanFromContext(r.Context())
	span.SetAttributes(semconv.HTTPResponseStatusCode(a.Status))
	if a.Status >= 500 {
		span.SetAttributes(semconv.ErrorTypeKey.String(strconv.Itoa(a.Status)))
		span.SetStatus(codes.Error, "")
	}
}

// caller returns the context and the options for the span of a request: the client's span is its
// parent if clients are trusted, otherwise the span links to it. event.ParseTrace bounds the
// client's tracestate, which stays in memory as long as the span.
func (t *Tracer) caller(r *http.Request) (context.Context, []trace.SpanStartOption) {
	ctx := r.Context()
	theirs, ok := event.ParseTrace(r.Header.Get("traceparent"), strings.Join(r.Header.Values("tracestate"), ","))
	if ok && t.trust {
		return extract(ctx, theirs), nil
	}
	if link := trace.LinkFromContext(extract(context.Background(), theirs)); ok && link.SpanContext.IsValid() {
		return ctx, []trace.SpanStartOption{trace.WithLinks(link)}
	}
	return ctx, nil
}

func extract(ctx context.Context, t event.Trace) context.Context {
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{"traceparent": t.Parent, "tracestate": t.State})
}
