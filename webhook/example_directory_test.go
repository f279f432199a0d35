package webhook_test

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/memqueue"
	"github.com/hookferry/analytics/webhook/webhooktest"
)

// A table stands for a table of your database.
type table struct {
	mu   sync.Mutex
	rows []webhook.Destination
}

func (t *table) Destination(_ context.Context, id string) (webhook.Destination, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := slices.IndexFunc(t.rows, func(d webhook.Destination) bool { return d.ID == id })
	if i < 0 {
		return webhook.Destination{}, webhook.ErrUnknownDestination
	}
	return t.rows[i], nil
}

func (t *table) Destinations(_ context.Context, tenant string) (ds []webhook.Destination, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, d := range t.rows {
		if d.Tenant == tenant {
			ds = append(ds, d)
		}
	}
	return ds, nil
}

// Customers change the URLs of their webhooks while the forwarder runs. After Recheck, the next
// attempt goes to the new URL.
func ExampleDirectory() {
	network := webhooktest.NewNetwork() // stands for the customer's servers
	defer network.Close()
	old := network.Receiver("https://old.example/hook", "")
	replacement := network.Receiver("https://new.example/hook", "")

	queue, err := memqueue.Open(memqueue.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	customers := new(table)
	forwarder, err := webhook.New(webhook.Config{
		Store:           queue,
		Directory:       customers,
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

	for _, r := range []*webhooktest.Receiver{old, replacement} {
		customers.mu.Lock()
		customers.rows = []webhook.Destination{{ID: "acme-1", Tenant: "acme", Endpoints: []webhook.Endpoint{{URL: r.URL}}}}
		customers.mu.Unlock()
		forwarder.Recheck("acme", "acme-1")
		if err := forwarder.Forward(ctx, "acme-1", &analytics.Track{UserId: "u1", Event: "Paid"}); err != nil {
			fmt.Println(err)
		}
		if _, err := r.Wait(ctx, 1); err != nil {
			fmt.Println(err)
		}
		fmt.Println("received at", r.URL)
	}
	forwarder.Shutdown(ctx)
	<-run
	// Output:
	// received at https://old.example/hook
	// received at https://new.example/hook
}
