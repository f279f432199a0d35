// Command sharded spreads destinations over several stores by a hash of the destination's
// id. Each store has a forwarder of its own, which could as well run on a machine of its
// own. Then the command removes a store. The forwarder of the removed store still
// delivers its waiting deliveries, while new deliveries go to the other stores.
//
//	go run ./examples/sharded
package main

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"sync/atomic"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/filequeue"
)

func main() {
	ctx := context.Background()
	var arrived atomic.Int64
	customers := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { arrived.Add(1) }))
	folder := must(os.MkdirTemp("", "sharded"))
	defer os.RemoveAll(folder)

	all, encoder := shards{}, event.Encoder{}
	for _, name := range []string{"a", "b", "c"} {
		store := must(filequeue.Open(folder+"/"+name, filequeue.Config{}))
		f := must(webhook.New(webhook.Config{
			Store:          store,
			Directory:      directory(customers.URL),
			AllowAddresses: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, // this machine
		}))
		go f.Run(ctx) // until drain
		all = append(all, &shard{f, name, store})
	}
	for i := range 6 {
		id := fmt.Sprint("customer-", i)
		for _, ss := range []shards{all, all[:2]} { // with store c, and then without it
			e := must(encoder.Encode(&analytics.Track{UserId: "u1", Event: "Order Placed"}))
			check(ss.ForwardEvents(ctx, []string{id}, e))
		}
		fmt.Printf("%s is in %s; then in %s\n", id, all.of(id).name, all[:2].of(id).name)
	}
	for _, s := range all {
		s.drain(ctx)
	}
	fmt.Println(arrived.Load(), "webhooks arrived")
}

// A directory is a URL below which each id has its destination.
type directory string

func (url directory) Destination(_ context.Context, id string) (webhook.Destination, error) {
	return webhook.Destination{ID: id, Endpoints: []webhook.Endpoint{{URL: string(url) + "/" + id}}}, nil
}

func (directory) Destinations(context.Context, string) (none []webhook.Destination, _ error) { return }

func must[T any](v T, err error) T {
	check(err)
	return v
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
