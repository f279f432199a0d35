package webhook_test

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"time"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/step"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/filequeue"
	"github.com/hookferry/analytics/webhook/memqueue"
	"github.com/hookferry/analytics/webhook/webhooktest"
)

func Example() {
	// A network in memory stands for the customer's server.
	network := webhooktest.NewNetwork()
	defer network.Close()
	acme := network.Receiver("https://acme.example/hook", "shared with acme")

	queue, err := memqueue.Open(memqueue.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	forwarder, err := webhook.New(webhook.Config{
		Store: queue,
		Destinations: []webhook.Destination{{
			ID:        "acme",
			Endpoints: []webhook.Endpoint{{URL: "https://acme.example/hook"}},
			Secret:    "shared with acme",
		}},
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

	err = forwarder.Forward(ctx, "acme", &analytics.Track{UserId: "u1", Event: "Signed Up"})
	if err != nil {
		fmt.Println(err)
	}
	requests, _ := acme.Wait(ctx, 1)
	fmt.Println(requests[0].JSON["event"], "by", requests[0].JSON["userId"], "- signature:", requests[0].Signature)

	forwarder.Shutdown(ctx)
	fmt.Println("stopped:", <-run)
	// Output:
	// Signed Up by u1 - signature: <nil>
	// stopped: <nil>
}

// memory returns a store in memory.
func memory() webhook.Store {
	queue, err := memqueue.Open(memqueue.Config{})
	if err != nil {
		panic(err)
	}
	return queue
}

// started starts a forwarder on queue with one destination, "acme". The receiver of acme follows
// the steps.
func started(queue webhook.Store, steps ...step.Step) (f *webhook.Forwarder, acme *webhooktest.Receiver, stop func()) {
	webhook.SeedJitter(webhook.QuickRetry)
	network := webhooktest.NewNetwork()
	acme = network.Receiver("http://acme.example/hook", "secret", steps...)
	f, err := webhook.New(webhook.Config{
		Store: queue,
		Destinations: []webhook.Destination{{
			ID:        "acme",
			Endpoints: []webhook.Endpoint{{URL: "http://acme.example/hook"}},
			Secret:    "secret",
		}},
		DialContext: network.DialContext,
	})
	if err != nil {
		panic(err)
	}
	run := make(chan error)
	go func() { run <- f.Run(context.Background()) }()
	return f, acme, func() {
		f.Shutdown(context.Background())
		<-run
		network.Close()
	}
}

// The first event of a destination comes alone, and further ones together.
func ExampleBatch() {
	network := webhooktest.NewNetwork()
	defer network.Close()
	acme := network.Receiver("https://acme.example/hook", "shared with acme")

	forwarder, err := webhook.New(webhook.Config{
		Store: memory(),
		Destinations: []webhook.Destination{{
			ID:        "acme",
			Endpoints: []webhook.Endpoint{{URL: "https://acme.example/hook"}},
			Secret:    "shared with acme",
			Batch:     webhook.Batch{MaxEvents: 100, MaxBytes: 256 << 10, MaxWait: time.Second},
		}},
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
	for i := range 4 {
		count := &event.Custom{Type: "stock.counted", ID: fmt.Sprint("count-", i), Data: map[string]int{"left": 9 - i}}
		if err := forwarder.Forward(ctx, "acme", count); err != nil {
			fmt.Println(err)
		}
		acme.Wait(ctx, 1)
	}
	forwarder.Shutdown(ctx) // does not wait for MaxWait
	fmt.Println("stopped:", <-run)
	for _, r := range acme.Requests() {
		events, err := r.Events()
		fmt.Println("request", r.Number, "has", len(events), err)
	}
	// Output:
	// stopped: <nil>
	// request 1 has 1 <nil>
	// request 2 has 3 <nil>
}

func ExampleForwarder_Forward_json() {
	forwarder, acme, stop := started(memory())
	defer stop()

	ctx := context.Background()
	call := event.JSON(`{"type":"track","event":"Paid","userId":"u1","properties":{"total":12.50}}`)
	if err := forwarder.Forward(ctx, "acme", call); err != nil {
		fmt.Println(err)
	}
	requests, _ := acme.Wait(ctx, 1)
	fmt.Println(requests[0].JSON["properties"])

	fmt.Println(forwarder.Forward(ctx, "acme", event.JSON(`{"type":"track","userId":"u1"}`)))
	// Output:
	// map[total:12.5]
	// event: call: event is required
}

func ExampleForwarder_RetryAll() {
	ctx := context.Background()
	queue, err := memqueue.Open(memqueue.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	forwarder, acme, stop := started(queue, step.Answer(410))
	forwarder.Forward(ctx, "acme", &analytics.Track{UserId: "u1", Event: "Paid", MessageId: "m1"})
	acme.Wait(ctx, 1)
	stop()

	// The customer has restored the endpoint.
	forwarder, acme, stop = started(queue)
	defer stop()
	dead := webhook.Query{Destinations: []string{"acme"}, States: []webhook.State{webhook.StateDead}}
	for d, err := range forwarder.Deliveries(ctx, dead) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(d.ID, d.Reason, d.Attempts[0].Status)
	}
	for done, err := range forwarder.RetryAll(ctx, dead) {
		fmt.Println("retried", done.Changed, err)
	}
	requests, _ := acme.Wait(ctx, 1)
	fmt.Println("received", requests[0].JSON["messageId"])
	// Output:
	// m1 refused 410
	// retried 1 <nil>
	// received m1
}

// A store with a history keeps delivered events. RetryAll sends them again if the receiver lost them.
func ExampleForwarder_RetryAll_delivered() {
	ctx := context.Background()
	folder, err := os.MkdirTemp("", "")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(folder)
	queue, err := filequeue.Open(folder, filequeue.Config{HistoryAge: 7 * 24 * time.Hour})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer queue.Close()
	forwarder, acme, stop := started(queue)
	forwarder.Forward(ctx, "acme", &analytics.Track{UserId: "u1", Event: "Paid", MessageId: "m1"})
	acme.Wait(ctx, 1)
	stop()

	forwarder, acme, stop = started(queue)
	defer stop()
	lost := webhook.Query{Destinations: []string{"acme"}, States: []webhook.State{webhook.StateDelivered}, User: "u1"}
	for done, err := range forwarder.RetryAll(ctx, lost) {
		fmt.Println("sent again", done.Changed, err)
	}
	requests, _ := acme.Wait(ctx, 1)
	fmt.Println("received", requests[0].JSON["messageId"])
	// Output:
	// sent again 1 <nil>
	// received m1
}

// While a secret is being replaced, the receiver may know only the old or the new one. Every
// request is signed with both.
func ExampleDestination_standardWebhooks() {
	oldSecret, newSecret := signature.NewStandardSecret(), signature.NewStandardSecret()
	network := webhooktest.NewNetwork()
	defer network.Close()
	acme := network.Receiver("https://acme.example/hook", "")
	queue, err := memqueue.Open(memqueue.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	forwarder, err := webhook.New(webhook.Config{
		Store: queue,
		Destinations: []webhook.Destination{{
			ID:              "acme",
			Endpoints:       []webhook.Endpoint{{URL: "https://acme.example/hook"}},
			StandardSecrets: []signature.Secret{newSecret, oldSecret},
		}},
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

	err = forwarder.Forward(ctx, "acme", &analytics.Track{UserId: "u1", Event: "Paid", MessageId: "m1"})
	if err != nil {
		fmt.Println(err)
	}
	requests, _ := acme.Wait(ctx, 1)
	body, header := requests[0].Body, requests[0].Header
	fmt.Println(header.Get("webhook-id"))
	fmt.Println(signature.VerifyStandard(body, header, 0, oldSecret))
	fmt.Println(signature.VerifyStandard(body, header, 0, newSecret))

	forwarder.Shutdown(ctx)
	<-run
	// Output:
	// m1
	// <nil>
	// <nil>
}

// A destination gets only the events that its filter accepts. Other events are not stored for it.
func ExampleFilter() {
	queue, err := memqueue.Open(memqueue.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	f, err := webhook.New(webhook.Config{
		Store: queue,
		Destinations: []webhook.Destination{{
			ID:        "crm",
			Endpoints: []webhook.Endpoint{{URL: "https://crm.example/hook"}},
			Filter: webhook.Filter{
				Include: []string{"identify", "track:Order *"},
				Exclude: []string{"track:Order Draft*"},
			},
		}},
	})
	if err != nil {
		panic(err)
	}
	if err := f.Forward(context.Background(), "crm",
		&analytics.Identify{UserId: "u1"},
		&analytics.Track{UserId: "u1", Event: "Order Completed"},
		&analytics.Track{UserId: "u1", Event: "Order Drafted"},
		&analytics.Page{UserId: "u1", Name: "Home"},
	); err != nil {
		panic(err)
	}
	s := f.Stats()
	fmt.Println(s.Accepted, "accepted,", s.Filtered, "filtered")
	// Output: 2 accepted, 2 filtered
}

// The URL of a customer leads to an address of this machine. The forwarder refuses the address
// unless AllowAddresses has it.
func ExampleConfig_allowAddresses() {
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
	}))
	defer receiver.Close()
	acme := webhook.Destination{ID: "acme", Endpoints: []webhook.Endpoint{{URL: receiver.URL}}}
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
			Destinations:   []webhook.Destination{acme},
			AllowAddresses: allow,
		})
		if err != nil {
			fmt.Println(err)
			return
		}
		exchanges, err := forwarder.Try(context.Background(), &acme, sample)
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
