package analyticstest_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/analyticstest"
	"github.com/hookferry/analytics/step"
)

// A program has sent its calls once it has closed its client. In a test, make the server
// with [analyticstest.New], which closes the server when the test ends.
func Example() {
	srv := analyticstest.NewServer()
	defer srv.Close()
	client := analytics.New("write-key")
	client.Transport = srv.Transport()

	err := client.Track(&analytics.Track{
		UserId:     "u-2041",
		Event:      "Order Completed",
		Properties: map[string]any{"total": 39.95},
	})
	if err := errors.Join(err, client.Close()); err != nil {
		fmt.Println(err)
	}

	for _, c := range srv.Calls() {
		fmt.Println(c.Type, c.UserId, c.Event, c.Properties["total"])
	}
	// Output: track u-2041 Order Completed 39.95
}

// To look at the calls of a client that is still in use, flush it, or wait for the calls.
func ExampleServer_Wait() {
	srv := analyticstest.NewServer()
	defer srv.Close()
	client := analytics.New("write-key")
	client.Transport = srv.Transport()
	client.FlushAt = 1
	defer client.Close()

	if err := client.Identify(&analytics.Identify{UserId: "u-2041"}); err != nil {
		fmt.Println(err)
	}

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	calls, err := srv.Wait(ctx, 1)
	fmt.Println(len(calls), err)
	// Output: 1 <nil>
}

// The collector rejects the second call of a batch.
func ExampleReject() {
	srv := analyticstest.NewServer(analyticstest.Reject(1))
	defer srv.Close()
	client := analytics.New("write-key")
	client.Transport = srv.Transport()
	client.OnDelivery = func(d analytics.Delivery) {
		fmt.Printf("%d messages, reason %q\n", d.Count, d.Reason)
	}

	for _, event := range []string{"Signed Up", "Trial Started", "Invited"} {
		if err := client.Track(&analytics.Track{UserId: "u-2041", Event: event}); err != nil {
			fmt.Println(err)
		}
	}
	var lost *analytics.UndeliveredError
	if err := client.Close(); errors.As(err, &lost) {
		fmt.Println(lost.Dropped, "dropped")
	}
	for _, c := range srv.Calls() {
		fmt.Println(c.Event)
	}
	// Output:
	// 2 messages, reason ""
	// 1 messages, reason "rejected"
	// 1 dropped
	// Signed Up
	// Invited
}

// A program that needs the address of its collector gets a server on a real socket.
func ExampleServer_ServeHTTP() {
	srv := analyticstest.NewServer()
	defer srv.Close()
	web := httptest.NewServer(srv)
	defer web.Close()

	client := analytics.New("write-key")
	client.Endpoint = web.URL
	if err := client.Group(&analytics.Group{UserId: "u-2041", GroupId: "acme"}); err != nil {
		fmt.Println(err)
	}
	if err := client.Close(); err != nil {
		fmt.Println(err)
	}
	fmt.Println(srv.Calls()[0].GroupId, srv.Batches()[0].WriteKey)
	// Output: acme write-key
}

// A client that sends nothing still returns errors for invalid calls.
func ExampleDiscard() {
	client := analytics.New("off")
	client.Transport = analyticstest.Discard{}

	fmt.Println(client.Track(&analytics.Track{UserId: "u-2041", Event: "Signed Up"}))
	fmt.Println(client.Track(&analytics.Track{UserId: "u-2041"}))
	fmt.Println(client.Close())
	// Output:
	// <nil>
	// analytics: track: Event is required
	// <nil>
}

// In a bubble of testing/synctest, retries take no real time, and their waits are exact. This is a
// test because an Example has no *testing.T.
func TestRetriesInABubbleTakeVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := analyticstest.New(t,
			step.Answer(http.StatusTooManyRequests).With("Retry-After", "120"),
			step.Answer(http.StatusOK))
		client := analytics.New("write-key")
		client.Transport = srv.Transport()
		start := time.Now()
		if err := client.Track(&analytics.Track{UserId: "u-2041", Event: "Signed Up"}); err != nil {
			t.Fatal(err)
		}
		if err := client.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := client.Close(); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took < 120*time.Second {
			t.Errorf("delivered after %v, want 120s or more", took)
		}
		batches := srv.Batches()
		if len(batches) != 2 || batches[1].RetryCount != 1 || len(srv.Calls()) != 1 {
			t.Errorf("Batches() = %+v, want two attempts; Calls() = %+v, want one call", batches, srv.Calls())
		}
	})
}
