package natsqueue_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/natsqueue"
)

// A forwarder that stores its deliveries in NATS servers. Any number of processes may run it
// with the same stream.
func ExampleOpen() {
	ctx := context.Background()
	nc, err := nats.Connect(os.Getenv("NATS_URL"), nats.MaxReconnects(-1), nats.PingInterval(5*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()
	queue, err := natsqueue.Open(ctx, nc, natsqueue.Config{Stream: "EXAMPLE", MaxBytes: 10 << 30})
	if err != nil {
		log.Fatal(err)
	}
	defer queue.Close()
	forwarder, err := webhook.New(webhook.Config{
		Store: queue,
		Destinations: []webhook.Destination{
			{ID: "crm", Endpoints: []webhook.Endpoint{{URL: "https://crm.example/hook"}}},
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	// forwarder.Run(ctx) delivers.

	event := event.Event{ID: "order-1", Type: "track", Body: []byte(`{"event":"Order Completed"}`)}
	if err := forwarder.ForwardEvents(ctx, []string{"crm"}, event); err != nil {
		log.Fatal(err)
	}
	counts, err := queue.Count(ctx)
	fmt.Println("waiting:", counts.Waiting, err)
	// Output:
	// waiting: 1 <nil>
}
