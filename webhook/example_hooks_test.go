package webhook_test

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/memqueue"
	"github.com/hookferry/analytics/webhook/webhooktest"
)

// This destination gets no email addresses. Its requests carry a token that is fetched for each.
func ExampleDestination() {
	token := func(context.Context) (string, error) { return "t0ken", nil }

	acme := webhook.Destination{
		ID:        "acme",
		Endpoints: []webhook.Endpoint{{URL: "https://acme.example/hook"}},
		// Once for each event, before it is stored.
		Transform: func(_ context.Context, e event.Event) (event.Event, error) {
			var body map[string]any
			if err := json.Unmarshal(e.Body, &body); err != nil {
				return e, err
			}
			if traits, ok := body["traits"].(map[string]any); ok {
				delete(traits, "email")
			}
			var err error
			e.Body, err = json.Marshal(body)
			return e, err
		},
		// Once for each request, before it is sent.
		Authorize: func(ctx context.Context, url string) (map[string]string, error) {
			t, err := token(ctx)
			return map[string]string{"Authorization": "Bearer " + t}, err
		},
	}

	network := webhooktest.NewNetwork() // stands for the customer's server
	defer network.Close()
	receiver := network.Receiver("https://acme.example/hook", "")
	queue, err := memqueue.Open(memqueue.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	forwarder, err := webhook.New(webhook.Config{
		Store:           queue,
		Destinations:    []webhook.Destination{acme},
		DialContext:     network.DialContext,
		TLSClientConfig: network.TLSClientConfig(),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	run := make(chan error)
	go func() { run <- forwarder.Run(ctx) }()
	err = forwarder.Forward(ctx, "acme", &analytics.Identify{UserId: "u1", Traits: map[string]any{"plan": "pro", "email": "a@b.example"}})
	if err != nil {
		fmt.Println(err)
	}
	requests, _ := receiver.Wait(ctx, 1)
	fmt.Println(requests[0].Header.Get("Authorization"), requests[0].JSON["traits"])
	forwarder.Shutdown(ctx)
	<-run
	// Output: Bearer t0ken map[plan:pro]
}
