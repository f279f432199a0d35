package docs_test

// The code in migrating.md for programs that used v2, after the migration.

import (
	"log/slog"
	"net/http"
	"os"
	"time"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/analyticstest"
	"github.com/hookferry/analytics/step"
)

func Example_v2Client() {
	srv := analyticstest.NewServer(step.Answer(http.StatusOK))
	defer srv.Close()
	endpoint, transport := "https://collector.example", srv.Transport()
	client := analytics.New("write-key")
	client.Endpoint = endpoint
	client.Size = 100
	client.FlushAfter = 2 * time.Second
	client.Transport = transport
	client.Timeout = 5 * time.Second
	client.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelInfo}))
	defer client.Close()
	check(client.Track(&analytics.Track{UserId: "u-2041", Event: "Signed Up"}))
	check(client.Close())
	show(srv)
	// Output: track u-2041 Signed Up
}

func Example_v2Calls() {
	srv := analyticstest.NewServer()
	defer srv.Close()
	client := analytics.New("write-key")
	client.Transport = srv.Transport()
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
	check(client.Close())
	show(srv)
	// Output:
	// identify u-2041 {"name":"Ada","plan":"team"}
	// page a-77 Pricing {"path":"/pricing"}
	// alias u-2041 a-77
}

func Example_v2Message() {
	srv := analyticstest.NewServer()
	defer srv.Close()
	client := analytics.New("write-key")
	client.Transport = srv.Transport()
	check(client.Track(&analytics.Track{
		UserId:    "u-2041",
		Event:     "Order Completed",
		MessageId: "order-1",
		Timestamp: "2026-03-04T05:06:07Z",
	}))
	check(client.Close())
	show(srv)
	// Output: track u-2041 Order Completed 2026-03-04T05:06:07Z
}
