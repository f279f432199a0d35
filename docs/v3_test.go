package docs_test

// The code in migrating.md for programs that used v3, after the migration.

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/analyticstest"
	"github.com/hookferry/analytics/step"
)

// delivered takes the place of v3's interface of two methods.
func delivered(d analytics.Delivery) {
	if d.Reason == "" {
		fmt.Println(d.Count, "delivered")
		return
	}
	fmt.Println(d.Count, "dropped")
}

func Example_v3Client() {
	srv := analyticstest.NewServer(step.Answer(http.StatusOK))
	defer srv.Close()
	endpoint := "https://collector.example"
	client := analytics.New("write-key")
	client.Endpoint = endpoint
	client.FlushAt = 100
	client.FlushAfter = 2 * time.Second
	client.Transport = srv.Transport()
	client.Logger = slog.Default()
	client.OnDelivery = delivered
	check(client.Track(&analytics.Track{UserId: "u-2041", Event: "Signed Up"}))
	if err := client.Close(); err != nil {
		log.Fatal(err)
	}
	show(srv)
	// Output:
	// 1 delivered
	// track u-2041 Signed Up
}

func Example_v3Calls() {
	srv := analyticstest.NewServer()
	defer srv.Close()
	client := analytics.New("write-key")
	client.Transport = srv.Transport()
	check(client.Identify(&analytics.Identify{
		UserId: "u-2041",
		Traits: map[string]any{"name": "Ada", "plan": "team"},
	}))
	check(client.Track(&analytics.Track{
		UserId:       "u-2041",
		Event:        "Order Completed",
		Properties:   map[string]any{"revenue": 39.95, "orderId": "o-1"},
		Integrations: map[string]any{"Webhooks": true},
	}))
	check(client.Page(&analytics.Page{
		AnonymousId: "a-77",
		Name:        "Pricing",
		Properties:  map[string]any{"path": "/pricing"},
	}))
	check(client.Group(&analytics.Group{
		UserId:  "u-2041",
		GroupId: "acme",
		Traits:  map[string]any{"description": "customer"},
	}))
	check(client.Alias(&analytics.Alias{PreviousId: "a-77", UserId: "u-2041"}))
	check(client.Close())
	show(srv)
	// Output:
	// identify u-2041 {"name":"Ada","plan":"team"}
	// track u-2041 Order Completed {"orderId":"o-1","revenue":39.95} {"Webhooks":true}
	// page a-77 Pricing {"path":"/pricing"}
	// group u-2041 acme {"description":"customer"}
	// alias u-2041 a-77
}

func Example_v3Context() {
	srv := analyticstest.NewServer()
	defer srv.Close()
	client := analytics.New("write-key")
	client.Transport = srv.Transport()
	at := time.Date(2026, 3, 4, 5, 6, 7, 891e6, time.UTC)
	check(client.Track(&analytics.Track{
		UserId:    "u-2041",
		Event:     "Order Completed",
		MessageId: "order-1",
		Timestamp: analytics.FormatTime(at),
		Context: map[string]any{
			"ip":     "192.0.2.1",
			"locale": "nb-NO",
			"app":    map[string]any{"name": "shop", "version": "1.2"},
			"active": true,
		},
	}))
	check(client.Close())
	show(srv)
	// Output:
	// track u-2041 Order Completed {"active":true,"app":{"name":"shop","version":"1.2"},"ip":"192.0.2.1","locale":"nb-NO"} 2026-03-04T05:06:07.891Z
}

func Example_v3Errors() {
	client := analytics.New("write-key")
	defer client.Close()
	err := client.Track(&analytics.Track{UserId: "u-2041"})
	var field *analytics.FieldError
	if errors.As(err, &field) {
		fmt.Println("invalid", field.Field)
	}
	// Output: invalid Event
}

// signUp tracks.
func signUp(client *analytics.Client, user string) error {
	return client.Track(&analytics.Track{UserId: user, Event: "Signed Up"})
}

func TestSignUp(t *testing.T) {
	srv := analyticstest.New(t)
	client := analytics.New("write-key")
	client.Transport = srv.Transport()
	if err := errors.Join(signUp(client, "u-2041"), client.Close()); err != nil {
		t.Fatal(err)
	}
	if calls := srv.Calls(); len(calls) != 1 || calls[0].Event != "Signed Up" {
		t.Errorf("calls = %+v, want one Signed Up", calls)
	}
}

// enqueue is v3's Enqueue, for programs that pass messages of any type around.
func enqueue(client *analytics.Client, m analytics.Message) error {
	switch m := m.(type) {
	case *analytics.Identify:
		return client.Identify(m)
	case *analytics.Track:
		return client.Track(m)
	case *analytics.Page:
		return client.Page(m)
	case *analytics.Screen:
		return client.Screen(m)
	case *analytics.Group:
		return client.Group(m)
	case *analytics.Alias:
		return client.Alias(m)
	}
	return fmt.Errorf("no call for a %T", m)
}

func TestEnqueueSendsEachType(t *testing.T) {
	srv := analyticstest.New(t)
	client := analytics.New("write-key")
	client.Transport = srv.Transport()
	messages := []analytics.Message{
		&analytics.Identify{UserId: "u"},
		&analytics.Track{UserId: "u", Event: "e"},
		&analytics.Page{UserId: "u"},
		&analytics.Screen{UserId: "u"},
		&analytics.Group{UserId: "u", GroupId: "g"},
		&analytics.Alias{UserId: "u", PreviousId: "p"},
	}
	for _, m := range messages {
		if err := enqueue(client, m); err != nil {
			t.Errorf("enqueue(%T) = %v, want nil", m, err)
		}
	}
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	if n := len(srv.Calls()); n != len(messages) {
		t.Errorf("%d calls arrived, want %d", n, len(messages))
	}
}

// A program may wait until its messages are delivered, and then go on.
func TestFlushDeliversBeforeItReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := analyticstest.New(t)
		client := analytics.New("write-key")
		client.Transport = srv.Transport()
		defer client.Close()
		check(client.Track(&analytics.Track{UserId: "u-2041", Event: "Signed Up"}))
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		if err := client.Flush(ctx); err != nil {
			slog.Warn("analytics", "error", err)
		}
		if calls := srv.Calls(); len(calls) != 1 || calls[0].Event != "Signed Up" {
			t.Errorf("calls = %+v, want one Signed Up", calls)
		}
	})
}
