package before_test

// The code of docs/migrating.md as it was with analytics-go v2. It is compiled
// against a declaration of that version, and sends nothing.

import (
	"log"
	"net/http"
	"os"
	"time"

	analytics "github.com/hookferry/analytics/interop/go/v3/before/analytics2"
)

func Example_v2Client() {
	endpoint, transport := "https://collector.example", http.DefaultTransport
	client := analytics.New("write-key")
	client.Endpoint = endpoint
	client.Size = 100
	client.Interval = 2 * time.Second
	client.Client = http.Client{Transport: transport, Timeout: 5 * time.Second}
	client.Verbose = true
	client.Logger = log.New(os.Stderr, "analytics ", log.LstdFlags)
	defer client.Close()
}

func Example_v2Calls() {
	client := analytics.New("write-key")
	defer client.Close()
	check(client.Identify(&analytics.Identify{
		UserId: "u-2041",
		Traits: map[string]interface{}{"name": "Ada", "plan": "team"},
	}))
	check(client.Page(&analytics.Page{
		AnonymousId: "a-77",
		Name:        "Pricing",
		Traits:      map[string]interface{}{"path": "/pricing"},
	}))
	check(client.Alias(&analytics.Alias{PreviousId: "a-77", UserId: "u-2041"}))
}

func Example_v2Message() {
	client := analytics.New("write-key")
	defer client.Close()
	check(client.Track(&analytics.Track{
		UserId: "u-2041",
		Event:  "Order Completed",
		Message: analytics.Message{
			MessageId: "order-1",
			Timestamp: "2026-03-04T05:06:07Z",
		},
	}))
}
