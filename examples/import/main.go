// Command import sends events of the past: it makes a call of each row of a file, with the
// time at which the event happened.
//
//	go run ./examples/import                     # prints what would be forwarded
//	go run ./examples/import -endpoint http://localhost:8080 -write-key KEY
package main

import (
	"context"
	_ "embed"
	"encoding/csv"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http/httptest"
	"strings"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/collector"
	"github.com/hookferry/analytics/event"
)

//go:embed orders.csv
var orders string

func main() {
	endpoint := flag.String("endpoint", "", "URL of the collector; without one, print what it would forward")
	writeKey := flag.String("write-key", "write-key", "write key of the source")
	flag.Parse()
	if *endpoint == "" {
		sources := collector.Keys(map[string]collector.Source{*writeKey: {Destinations: []string{"printer"}}})
		handler, err := collector.New(collector.Config{Forwarder: printer{}, Sources: sources})
		check(err)
		*endpoint = httptest.NewServer(handler).URL
	}
	client := analytics.New(*writeKey)
	client.Endpoint = *endpoint

	rows, err := csv.NewReader(strings.NewReader(orders)).ReadAll()
	check(err)
	for _, row := range rows {
		// The messageId is derived from the id in the row. So a second import of the same
		// rows adds nothing.
		order := &analytics.Track{MessageId: "order-" + row[0], Timestamp: row[1], UserId: row[2], Event: "Order Completed"}
		err := client.Track(order)
		if errors.Is(err, analytics.ErrQueueFull) { // rows are read faster than they are sent
			check(client.Flush(context.Background()))
			err = client.Track(order)
		}
		check(err)
	}
	check(client.Close()) // no error: the collector has taken all orders
	fmt.Println("imported", len(rows), "orders")
}

// A printer stands in for a forwarder.
type printer struct{}

func (printer) ForwardEvents(_ context.Context, _ []string, events ...event.Event) error {
	for _, e := range events {
		fmt.Printf("%s\n", e.Body)
	}
	return nil
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
