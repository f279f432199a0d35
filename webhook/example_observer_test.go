package webhook_test

import (
	"context"
	"expvar"
	"fmt"
	"time"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/step"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/memqueue"
	"github.com/hookferry/analytics/webhook/store"
	"github.com/hookferry/analytics/webhook/webhooktest"
)

// counts is an Observer that counts requests and deliveries in expvar maps.
type counts struct {
	requests, deliveries *expvar.Map
	ended                chan webhook.Record
}

func (c *counts) Accepted(a webhook.Accepted) { c.deliveries.Add("accepted", int64(a.Stored)) }

func (c *counts) Attempted(a webhook.Attempted) {
	c.requests.Add(a.Destination+" "+string(a.Outcome), 1)
}

func (c *counts) Ended(e webhook.Record) {
	if e.Reason == "" {
		c.deliveries.Add("delivered", 1)
	} else {
		c.deliveries.Add("dead "+string(e.Reason), 1)
	}
	c.ended <- e // only in an example: an Observer that blocks delays deliveries
}

// The counters of this Observer can be published with expvar.Publish.
func ExampleObserver() {
	seen := &counts{requests: new(expvar.Map), deliveries: new(expvar.Map), ended: make(chan webhook.Record, 2)}
	network := webhooktest.NewNetwork()
	defer network.Close()
	network.Receiver("http://acme.example/hook", "", step.Answer(200), step.Answer(410))
	queue, err := memqueue.Open(memqueue.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	forwarder, err := webhook.New(webhook.Config{
		Store: queue,
		Destinations: []webhook.Destination{{
			ID: "acme", Endpoints: []webhook.Endpoint{{URL: "http://acme.example/hook"}},
		}},
		DialContext: network.DialContext,
		Observers:   []webhook.Observer{seen},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	run := make(chan error)
	go func() { run <- forwarder.Run(ctx) }()
	for range 2 {
		forwarder.Forward(ctx, "acme", &analytics.Track{UserId: "u1", Event: "Paid"})
		<-seen.ended
	}
	forwarder.Shutdown(ctx)
	<-run
	fmt.Println(seen.requests)
	fmt.Println(seen.deliveries)
	// Output:
	// {"acme delivered": 1, "acme permanent": 1}
	// {"accepted": 2, "dead refused": 1, "delivered": 1}
}

func ExampleForwarder_RetryAll_progress() {
	ctx := context.Background()
	queue, err := memqueue.Open(memqueue.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	now := time.Now()
	for i := range 600 {
		d := webhook.Delivery{Destination: "acme", ID: fmt.Sprint(i), Body: []byte("{}"), Due: now}
		kept := make([]store.Result, 1)
		queue.Put(ctx, []store.Put{{Delivery: d, Keep: true}}, kept)
		d.Claim = kept[0].Claim
		queue.Settle(ctx, []store.Settlement{{Verdict: store.Bury, Delivery: d, Reason: webhook.ReasonExpired, At: now}})
	}

	forwarder, _, stop := started(queue)
	defer stop()
	query := webhook.Query{Destinations: []string{"acme"}, States: []webhook.State{webhook.StateDead}, Reason: webhook.ReasonExpired}
	all, _ := forwarder.Count(ctx, query)
	for done, err := range forwarder.RetryAll(ctx, query) {
		if err != nil {
			fmt.Println(err) // calling RetryAll again retries the rest
			return
		}
		fmt.Println(done.Changed, "of", all)
	}
	// Output:
	// 256 of 600
	// 512 of 600
	// 600 of 600
}

func ExampleForwarder_Forward_trace() {
	forwarder, acme, stop := started(memory())
	defer stop()

	// The trace usually comes from the request that is being served: r.Header.Get("traceparent").
	ctx := event.ContextWithTrace(context.Background(), "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "")
	forwarder.Forward(ctx, "acme", &analytics.Track{UserId: "u1", Event: "Paid"})
	requests, _ := acme.Wait(ctx, 1)
	fmt.Println(requests[0].Header.Get("traceparent"))
	// Output: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
}

func ExampleForwarder_DestinationStats() {
	ctx := context.Background()
	forwarder, _, stop := started(memory())
	defer stop()
	forwarder.Pause(context.Background(), "acme")
	forwarder.Forward(ctx, "acme", &analytics.Track{UserId: "u1", Event: "Paid"})
	all, err := forwarder.DestinationStats(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, s := range all {
		fmt.Println(s.Destination, s.Waiting, "waiting,", s.Held.Kind)
	}
	// Output: acme 1 waiting, paused
}
