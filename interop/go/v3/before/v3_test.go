// Package before_test has the "before" code of docs/migrating.md. It compiles with the
// clients that programs migrate from, and runs with v3. The "after" code is tested beside
// the guide, by examples of the same names that must have the same output.
package before_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hookferry/analytics/analyticstest"
	"github.com/hookferry/analytics/step"
	"github.com/segmentio/analytics-go/v3"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// show prints the calls that arrived.
func show(srv *analyticstest.Server) {
	for _, c := range srv.Calls() {
		line := []string{c.Type, c.UserId, c.AnonymousId, c.PreviousId, c.GroupId, c.Event, c.Name}
		for _, m := range []map[string]any{c.Properties, c.Traits, c.Integrations, c.Context} {
			if len(m) > 0 {
				text, err := json.Marshal(m)
				check(err)
				line = append(line, string(text))
			}
		}
		if c.MessageId == "order-1" {
			line = append(line, c.Timestamp.Format(time.RFC3339Nano))
		}
		fmt.Println(strings.Join(strings.Fields(strings.Join(line, " ")), " "))
	}
}

// callback is v3's interface of two methods.
type callback struct{}

func (callback) Success(analytics.Message) {
	fmt.Println("1 delivered")
}

func (callback) Failure(m analytics.Message, err error) {
	fmt.Println("1 dropped")
}

func Example_v3Client() {
	srv := analyticstest.NewServer(step.Answer(http.StatusOK))
	defer srv.Close()
	endpoint := "https://collector.example"
	client, err := analytics.NewWithConfig("write-key", analytics.Config{
		Endpoint:  endpoint,
		BatchSize: 100,
		Interval:  2 * time.Second,
		Transport: srv.Transport(),
		Logger:    analytics.StdLogger(log.Default()),
		Callback:  callback{},
	})
	if err != nil {
		log.Fatal(err)
	}
	check(client.Enqueue(analytics.Track{UserId: "u-2041", Event: "Signed Up"}))
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
	client, err := analytics.NewWithConfig("write-key", analytics.Config{Transport: srv.Transport()})
	check(err)
	check(client.Enqueue(analytics.Identify{
		UserId: "u-2041",
		Traits: analytics.NewTraits().SetName("Ada").Set("plan", "team"),
	}))
	check(client.Enqueue(analytics.Track{
		UserId:       "u-2041",
		Event:        "Order Completed",
		Properties:   analytics.NewProperties().SetRevenue(39.95).SetOrderId("o-1"),
		Integrations: analytics.NewIntegrations().Enable("Webhooks"),
	}))
	check(client.Enqueue(analytics.Page{
		AnonymousId: "a-77",
		Name:        "Pricing",
		Properties:  analytics.NewProperties().SetPath("/pricing"),
	}))
	check(client.Enqueue(analytics.Group{
		UserId:  "u-2041",
		GroupId: "acme",
		Traits:  analytics.NewTraits().SetDescription("customer"),
	}))
	check(client.Enqueue(analytics.Alias{PreviousId: "a-77", UserId: "u-2041"}))
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
	client, err := analytics.NewWithConfig("write-key", analytics.Config{Transport: srv.Transport()})
	check(err)
	at := time.Date(2026, 3, 4, 5, 6, 7, 891e6, time.UTC)
	check(client.Enqueue(analytics.Track{
		UserId:    "u-2041",
		Event:     "Order Completed",
		MessageId: "order-1",
		Timestamp: at,
		Context: &analytics.Context{
			IP:     net.IPv4(192, 0, 2, 1),
			Locale: "nb-NO",
			App:    analytics.AppInfo{Name: "shop", Version: "1.2"},
			Extra:  map[string]interface{}{"active": true},
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
	err := client.Enqueue(analytics.Track{UserId: "u-2041"})
	var field analytics.FieldError
	if errors.As(err, &field) {
		fmt.Println("invalid", field.Name)
	}
	// Output: invalid Event
}

// signUp tracks with v3's interface of a client.
func signUp(client analytics.Client, user string) error {
	return client.Enqueue(analytics.Track{UserId: user, Event: "Signed Up"})
}

// recorder replaces the client in a test.
type recorder struct{ messages []analytics.Message }

func (r *recorder) Enqueue(m analytics.Message) error {
	r.messages = append(r.messages, m)
	return nil
}

func (r *recorder) Close() error { return nil }

func TestSignUp(t *testing.T) {
	rec := &recorder{}
	if err := signUp(rec, "u-2041"); err != nil {
		t.Fatal(err)
	}
	if len(rec.messages) != 1 || rec.messages[0].(analytics.Track).Event != "Signed Up" {
		t.Errorf("messages = %+v, want one Signed Up", rec.messages)
	}
}
