// Command embed is a service that tells its customers about their orders. It embeds the
// forwarder with a store in one folder, and needs no server. It places one order, and
// ends when the webhook has arrived.
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
	ctx := context.Background()
	folder, err := os.MkdirTemp("", "embed")
	check(err)
	defer os.RemoveAll(folder)

	// A customer's receiver, which runs on this machine here.
	arrived := make(chan []byte, 1)
	crm := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		arrived <- body
	}))
	thisMachine := []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}

	customers := customers{"acme": {{ID: "acme-1", Endpoints: []webhook.Endpoint{{URL: crm.URL}}, Secret: "s3cret"}}}

	store, err := filequeue.Open(folder+"/webhooks", filequeue.Config{})
	check(err)
	forwarder, err := webhook.New(webhook.Config{
		Store:          store,
		Directory:      customers,   // finds the URLs of a customer
		AllowAddresses: thisMachine, // apart from these, only public addresses are allowed
	})
	check(err)
	go forwarder.Run(ctx) // until Shutdown, which waits for it
	check(forwarder.Forward(ctx, "acme-1", &analytics.Track{UserId: "u1", Event: "Order Placed"}))

	// Forward has returned nil, so the event is stored, and a crash from here on would
	// not lose it.
	fmt.Printf("webhook: %s\n", <-arrived)

	check(forwarder.Shutdown(ctx))
	check(store.Close())
}

// customers stands for your own tables: it has the destinations of each tenant.
type customers map[string][]webhook.Destination

func (c customers) Destinations(_ context.Context, tenant string) ([]webhook.Destination, error) {
	return c[tenant], nil
}

func (c customers) Destination(_ context.Context, id string) (webhook.Destination, error) {
	for _, ds := range c {
		for _, d := range ds {
			if d.ID == id {
				return d, nil
			}
		}
	}
	return webhook.Destination{}, webhook.ErrUnknownDestination
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
