package webhookotel_test

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/step"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/memqueue"
	"github.com/hookferry/analytics/webhook/webhookotel"
	"github.com/hookferry/analytics/webhook/webhooktest"
)

func Example() {
	// What the program has already: a provider of OpenTelemetry, a store, and a customer.
	recorder := tracetest.NewSpanRecorder() // in place of an exporter
	otel.SetTracerProvider(sdk.NewTracerProvider(sdk.WithSpanProcessor(recorder)))
	store, err := memqueue.Open(memqueue.Config{})
	check(err)
	network := webhooktest.NewNetwork()
	defer network.Close()
	network.Receiver("http://acme.example/hook", "", step.Answer(200))
	destinations := []webhook.Destination{{ID: "acme", Endpoints: []webhook.Endpoint{{URL: "http://acme.example/hook"}}}}

	tracer := webhookotel.New(otel.GetTracerProvider())
	delivered := make(finished)
	forwarder, err := webhook.New(webhook.Config{
		Store: store, Destinations: destinations, DialContext: network.DialContext,
		Observers: []webhook.Observer{tracer, delivered},
	})
	check(err)
	go forwarder.Run(context.Background())

	ctx, span := otel.Tracer("shop").Start(context.Background(), "pay") // or the span of otelhttp
	err = forwarder.Forward(webhookotel.Context(ctx), "acme", &analytics.Track{UserId: "u1", Event: "Paid"})
	span.End()
	check(err)

	<-delivered
	check(forwarder.Shutdown(context.Background()))
	children := map[string]bool{}
	for _, s := range recorder.Ended() {
		children[s.Name()] = s.Parent().SpanID() == span.SpanContext().SpanID()
	}
	fmt.Println(children)
	// Output: map[attempt:true deliver:true pay:false]
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// finished is a webhook.Observer that is closed when a delivery has ended.
type finished chan struct{}

func (finished) Accepted(webhook.Accepted)   {}
func (finished) Attempted(webhook.Attempted) {}
func (f finished) Ended(webhook.Record)      { close(f) }
