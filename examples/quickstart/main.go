// Command quickstart runs the whole path in one process: a client, the
// collector, the forwarder with its store, and a receiver that checks
// signatures. It makes one call of each kind, prints the webhooks, and ends
// when all have arrived.
//
//	go run ./examples/quickstart
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"time"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/collector"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/filequeue"
)

var typeOf = regexp.MustCompile(`"type":"\w+"`)

func main() {
	folder, err := os.MkdirTemp("", "quickstart")
	check(err)
	defer os.RemoveAll(folder)
	time.AfterFunc(time.Minute, func() { log.Fatal("not all webhooks have arrived") })

	// The customer's side: a receiver that checks signatures.
	arrived := make(chan string) // the types of the webhooks
	receiver := httptest.NewServer(&signature.Handler{Secrets: []signature.Secret{"s3cret"}, Next: http.HandlerFunc(
		func(_ http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			fmt.Printf("signature ok  %s\n", body)
			arrived <- typeOf.FindString(string(body))
		})})

	// Your side: the forwarder with its store, and the collector in front of it.
	store, err := filequeue.Open(folder+"/store", filequeue.Config{})
	check(err)
	crm := webhook.Destination{ID: "crm", Secret: "s3cret", Endpoints: []webhook.Endpoint{{URL: receiver.URL}}}
	forwarder, err := webhook.New(webhook.Config{Store: store, Destinations: []webhook.Destination{crm}})
	check(err)
	go forwarder.Run(context.Background()) // until Shutdown, which waits for it
	sources := collector.Keys(map[string]collector.Source{"write-key": {Destinations: []string{"crm"}}})
	handler, err := collector.New(collector.Config{Forwarder: forwarder, Sources: sources})
	check(err)

	// Your application.
	client := analytics.New("write-key")
	client.Endpoint = httptest.NewServer(handler).URL
	check(client.Identify(&analytics.Identify{UserId: "u1", Traits: map[string]any{"plan": "pro"}}))
	check(client.Track(&analytics.Track{UserId: "u1", Event: "Signed Up", Properties: map[string]any{"seats": 3}}))
	check(client.Page(&analytics.Page{UserId: "u1", Name: "Home", Traits: map[string]any{"path": "/"}}))
	check(client.Screen(&analytics.Screen{UserId: "u1", Name: "Start"}))
	check(client.Group(&analytics.Group{UserId: "u1", GroupId: "g1", Traits: map[string]any{"name": "Acme"}}))
	check(client.Alias(&analytics.Alias{UserId: "u1", PreviousId: "a1"}))
	check(client.Shutdown(context.Background())) // no error: the collector has all calls on disk

	for kinds := map[string]bool{}; len(kinds) < 6; {
		kinds[<-arrived] = true
	}
	check(forwarder.Shutdown(context.Background()))
	check(store.Close())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
