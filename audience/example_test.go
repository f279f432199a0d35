package audience_test

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/hookferry/analytics/audience"
	"github.com/hookferry/analytics/audience/memroster"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/memqueue"
	"github.com/hookferry/analytics/webhook/webhooktest"
)

// started starts a forwarder, which runs until stop is called. It returns an Announcer of the
// forwarder, and the receiver of its only destination, "acme".
func started() (announcer *audience.Announcer, acme *webhooktest.Receiver, stop func()) {
	network := webhooktest.NewNetwork()
	acme = network.Receiver("http://acme.example/hook", "")
	store, err := memqueue.Open(memqueue.Config{})
	if err != nil {
		panic(err)
	}
	forwarder, err := webhook.New(webhook.Config{
		Store:        store,
		Destinations: []webhook.Destination{{ID: "acme", Endpoints: []webhook.Endpoint{{URL: "http://acme.example/hook"}}}},
		DialContext:  network.DialContext,
	})
	if err != nil {
		panic(err)
	}
	run := make(chan error)
	go func() { run <- forwarder.Run(context.Background()) }()
	return audience.New(forwarder, memroster.New(64<<20)), acme, func() {
		forwarder.Shutdown(context.Background())
		<-run
		store.Close()
		network.Close()
	}
}

func ExampleAudience_Sync() {
	announcer, acme, stop := started()
	defer stop()

	ctx := context.Background()
	vips, err := announcer.Audience("acme", "VIP Users")
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, members := range [][]string{{"u1", "u2"}, {"u2", "u3"}} {
		res, err := vips.Sync(ctx, audience.Users(slices.Values(members)))
		fmt.Println(res.Joined, "joined,", res.Left, "left,", err)
	}
	requests, _ := acme.Wait(ctx, 4)
	var sent []string
	for _, r := range requests {
		sent = append(sent, fmt.Sprint(r.JSON["userId"], r.JSON["traits"]))
	}
	slices.Sort(sent)
	fmt.Println(sent)
	// Output:
	// 2 joined, 0 left, <nil>
	// 1 joined, 1 left, <nil>
	// [u1map[vip_users:false] u1map[vip_users:true] u2map[vip_users:true] u3map[vip_users:true]]
}

// After an error or a crash, the application makes the request again with the same ID. Delete
// leaves out the users that it has forwarded before.
func ExampleAnnouncer_Delete() {
	announcer, acme, stop := started()
	defer stop()

	ctx := context.Background()
	request := audience.Deletion{ID: "request-2026-03-01", Destinations: []string{"acme"}}
	for _, users := range [][]string{{"u1", "u2", ""}, {"u1", "u2", "u3"}} {
		fmt.Println(announcer.Delete(ctx, request, audience.Users(slices.Values(users))))
	}
	requests, _ := acme.Wait(ctx, 3)
	var sent []string
	for _, r := range requests {
		sent = append(sent, fmt.Sprint(r.JSON["type"], " ", r.JSON["userId"]))
	}
	slices.Sort(sent)
	fmt.Println(sent)
	// Output:
	// audience: user 2: an id of 0 bytes, want 1 to 8192
	// <nil>
	// [delete u1 delete u2 delete u3]
}

// The list of an audience may be too long for memory, such as the rows of a database. An error of
// the list ends the sync, and the sync removes nobody.
func ExampleAudience_Sync_listing() {
	announcer, _, stop := started()
	defer stop()

	ctx := context.Background()
	everyone, err := announcer.Audience("acme", "Everyone")
	if err != nil {
		fmt.Println(err)
		return
	}
	var failure error
	rows := func(yield func(string, error) bool) {
		for i := range 3000 {
			if !yield(fmt.Sprint("u", i), nil) {
				return
			}
		}
		if failure != nil {
			yield("", failure)
		}
	}
	failure = errors.New("connection lost")
	fmt.Println(everyone.Sync(ctx, rows))
	failure = nil
	fmt.Println(everyone.Sync(ctx, rows))

	_, err = everyone.Sync(ctx, audience.Users(slices.Values([]string{"u1", ""})))
	var userErr *audience.UserError
	fmt.Println(errors.As(err, &userErr), userErr.Position)
	// Output:
	// {2048 0} connection lost
	// {952 0} <nil>
	// true 1
}
