// Command embed is a service that tells its customers about their orders: it
// has the forwarder inside, with one folder for a store, and no server beside
// it. It takes one order from itself, and ends once the webhook has arrived.
//
//	go run ./examples/embed
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/filequeue"
)

func main() {
	folder, err := os.MkdirTemp("", "embed")
	check(err)
	defer os.RemoveAll(folder)
	store, err := filequeue.Open(folder+"/webhooks", filequeue.Config{})
	check(err)

	// Where a customer's webhooks go is looked up before each attempt.
	arrived := make(chan []byte, 1)
	crm := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		arrived <- body
	}))
	customers := map[string]*webhook.Destination{
		"acme": {ID: "acme", Endpoints: []webhook.Endpoint{{URL: crm.URL}}, Secret: "s3cret"},
	}
	forwarder, err := webhook.New(webhook.Config{
		Store: store,
		Lookup: func(_ context.Context, id string) (*webhook.Destination, error) {
			if d := customers[id]; d != nil {
				return d, nil
			}
			return nil, webhook.ErrUnknownDestination
		},
		// What customers enter may not lead into your network. Here the
		// customer is on this machine.
		AllowAddresses: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
	})
	check(err)
	go forwarder.Run(context.Background()) // until Shutdown, which waits for it

	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		order := &analytics.Track{UserId: "u1", Event: "Order Placed", Properties: map[string]any{"total": 12.5}}
		// Once Forward returns nil, a crash does not lose the event.
		if err := forwarder.Forward(r.Context(), "acme", order); err != nil {
			http.Error(w, "try again", http.StatusServiceUnavailable)
		}
	}))
	answer, err := http.Post(service.URL, "", nil)
	check(err)
	answer.Body.Close()
	fmt.Println("order:", answer.Status)
	fmt.Printf("webhook: %s\n", <-arrived)

	check(forwarder.Shutdown(context.Background()))
	check(store.Close())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
