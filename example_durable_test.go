package analytics_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/analyticstest"
	"github.com/hookferry/analytics/step"
)

// With SpoolDir, every accepted message is delivered, even if the collector stays away
// until the next start of the program.
func ExampleClient_spool() {
	folder, err := os.MkdirTemp("", "spool")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(folder)
	collector := analyticstest.NewServer(step.Answer(http.StatusServiceUnavailable))
	defer collector.Close()

	client := analytics.New("write-key")
	client.Transport = collector.Transport()
	client.SpoolDir = folder
	if err := client.Track(&analytics.Track{UserId: "u1", Event: "Paid"}); err != nil {
		fmt.Println(err)
	}
	deadline := time.Now() // a real program allows some seconds
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	client.Shutdown(ctx) // the error says that one message stays on disk

	// The program starts again, and the collector is back.
	collector.SetScript(step.Answer(http.StatusOK))
	client = analytics.New("write-key")
	client.Transport = collector.Transport()
	client.SpoolDir = folder
	fmt.Println(client.Flush(context.Background()))
	s := client.Stats()
	fmt.Println("recovered", s.Recovered, "delivered", s.Delivered)
	client.Close()
	// Output:
	// <nil>
	// recovered 1 delivered 1
}

// Enqueue waits for room instead of returning ErrQueueFull.
func ExampleClient_Enqueue() {
	collector := analyticstest.NewServer()
	defer collector.Close()
	client := analytics.New("write-key")
	client.Transport = collector.Transport()

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for i := range 3 {
		err := client.Enqueue(ctx, &analytics.Track{UserId: "u1", Event: fmt.Sprint("Imported ", i)})
		if err != nil {
			fmt.Println(err)
		}
	}
	client.Close()
	for _, call := range collector.Calls() {
		fmt.Println(call.Event)
	}
	// Output:
	// Imported 0
	// Imported 1
	// Imported 2
}

// Gzip is for collectors that accept compressed requests, such as the one in this module.
func ExampleClient_gzip() {
	collector := analyticstest.NewServer()
	defer collector.Close()
	client := analytics.New("write-key")
	client.Transport = collector.Transport()
	client.Gzip = true
	if err := client.Track(&analytics.Track{UserId: "u1", Event: "Paid"}); err != nil {
		fmt.Println(err)
	}
	client.Close()
	batch := collector.Batches()[0]
	fmt.Println(batch.Gzip, batch.Calls[0].Event)
	// Output: true Paid
}
