package webhook_test

import (
	"context"
	"fmt"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/step"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/memqueue"
	"github.com/hookferry/analytics/webhook/webhooktest"
)

// A settings page can offer a button that sends a sample event to a destination.
func ExampleForwarder_Try() {
	network := webhooktest.NewNetwork()
	defer network.Close()
	network.Receiver("https://crm.example/hook", "secret", step.Answer(404).WithBody("no such hook"))

	destination := webhook.Destination{
		ID:        "crm",
		Secret:    "secret",
		Endpoints: []webhook.Endpoint{{URL: "https://crm.example/hook"}},
	}
	queue, err := memqueue.Open(memqueue.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	forwarder, err := webhook.New(webhook.Config{
		Store:           queue,
		Destinations:    []webhook.Destination{destination},
		DialContext:     network.DialContext,
		TLSClientConfig: network.TLSClientConfig(),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	sample, err := new(event.Encoder).Encode(&analytics.Track{UserId: "u1", Event: "Signed Up"})
	if err != nil {
		fmt.Println(err)
		return
	}
	exchanges, err := forwarder.Try(context.Background(), &destination, sample)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, x := range exchanges {
		fmt.Println(x.Endpoint, x.Status, x.Reason, x.Answer)
		fmt.Println("signed:", x.Header.Get("X-Signature") != "")
	}
	// Output:
	// https://crm.example/hook 404 refused no such hook
	// signed: true
}
