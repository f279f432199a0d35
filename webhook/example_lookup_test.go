package webhook_test

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/memqueue"
	"github.com/hookferry/analytics/webhook/webhooktest"
)

// Customers change the URLs of their webhooks while the forwarder runs. Each attempt calls Lookup,
// so the next attempt goes to the new URL.
func ExampleConfig_lookup() {
	network := webhooktest.NewNetwork() // stands for the customer's servers
	defer network.Close()
	old := network.Receiver("https://old.example/hook", "")
	replacement := network.Receiver("https://new.example/hook", "")

	var customers sync.Map // from destination ids to *webhook.Destination; a cache of your own table
	enter := func(url string) {
		customers.Store("acme", &webhook.Destination{ID: "acme", Endpoints: []webhook.Endpoint{{URL: url}}})
	}
	queue, err := memqueue.Open(memqueue.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	forwarder, err := webhook.New(webhook.Config{
		Store: queue,
		Lookup: func(_ context.Context, id string) (*webhook.Destination, error) {
			if d, ok := customers.Load(id); ok {
				return d.(*webhook.Destination), nil
			}
			return nil, webhook.ErrUnknownDestination
		},
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
		enter(r.URL)
		if err := forwarder.Forward(ctx, "acme", &analytics.Track{UserId: "u1", Event: "Paid"}); err != nil {
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

// The URL of a customer leads to an address of this machine. The forwarder refuses the address
// unless AllowAddresses has it.
func ExampleConfig_allowAddresses() {
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
	}))
	defer receiver.Close()
	acme := &webhook.Destination{ID: "acme", Endpoints: []webhook.Endpoint{{URL: receiver.URL}}}
	sample, err := new(event.Encoder).Encode(&analytics.Track{UserId: "u1", Event: "Paid"})
	if err != nil {
		fmt.Println(err)
		return
	}

	for _, allow := range [][]netip.Prefix{nil, {netip.MustParsePrefix("127.0.0.0/8")}} {
		queue, err := memqueue.Open(memqueue.Config{})
		if err != nil {
			fmt.Println(err)
			return
		}
		forwarder, err := webhook.New(webhook.Config{
			Store:          queue,
			Lookup:         func(context.Context, string) (*webhook.Destination, error) { return acme, nil },
			AllowAddresses: allow,
		})
		if err != nil {
			fmt.Println(err)
			return
		}
		exchanges, err := forwarder.Try(context.Background(), webhook.TryParams{Destination: acme, Event: sample})
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(allow, exchanges[0].Outcome, exchanges[0].Reason)
	}
	// Output:
	// [] permanent address
	// [127.0.0.0/8] delivered
}

// The order and its event are committed in one transaction. The Store of the forwarder is a
// pgqueue.Store of the same database. The example of package pgqueue is a complete program.
func ExampleForwarder_ForwardTx() {
	var (
		db        *sql.DB
		forwarder *webhook.Forwarder
	)
	placeOrder := func(ctx context.Context, id, user string) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback() // does nothing after Commit
		if _, err := tx.ExecContext(ctx, "INSERT INTO orders VALUES ($1, $2)", id, user); err != nil {
			return err
		}
		order := &analytics.Track{UserId: user, Event: "Order Placed", MessageId: id}
		if err := forwarder.ForwardTx(ctx, tx, "acme", order); err != nil {
			return err
		}
		return tx.Commit()
	}
	_ = placeOrder
}
