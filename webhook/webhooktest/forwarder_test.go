package webhooktest_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/step"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/memqueue"
	"github.com/hookferry/analytics/webhook/webhooktest"
)

// TestFourHoursOfRetries shows how to test a program that embeds a forwarder. A customer is down
// for longer than the forwarder retries an event, and comes back. In a synctest bubble the test
// takes milliseconds.
func TestFourHoursOfRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := webhooktest.NewNetwork()
		defer network.Close()
		crm := network.Receiver("https://crm.example/hook", "secret", step.Answer(503))
		queue, err := memqueue.Open(memqueue.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer queue.Close()
		forwarder, err := webhook.New(webhook.Config{
			Store:           queue,
			Destinations:    []webhook.Destination{{ID: "crm", Secret: "secret", Endpoints: []webhook.Endpoint{{URL: crm.URL}}}},
			DialContext:     network.DialContext,
			TLSClientConfig: network.TLSClientConfig(),
		})
		if err != nil {
			t.Fatal(err)
		}
		run := make(chan error)
		go func() { run <- forwarder.Run(context.Background()) }() // ended below

		if err := forwarder.Forward(t.Context(), "crm", &analytics.Track{UserId: "u1", Event: "Signed Up"}); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		time.Sleep(4*time.Hour + time.Second) // of the bubble
		requests := crm.Requests()
		last := requests[len(requests)-1].Time.Sub(begin)
		if len(requests) < 25 || last < 3*time.Hour+59*time.Minute || last > 4*time.Hour {
			t.Errorf("got %d requests, the last after %v; want at least 25, the last just before 4h", len(requests), last)
		}
		if n := forwarder.Stats().Dead[webhook.ReasonExpired]; n != 1 {
			t.Errorf("got %d dead letters, want 1", n)
		}

		crm.SetScript(step.Answer(200))
		for n, err := range forwarder.RetryAll(t.Context(), webhook.Query{Destinations: []string{"crm"}}) {
			if n.Changed != 1 || err != nil {
				t.Errorf("RetryAll yields %+v, %v; want 1, nil", n, err)
			}
		}
		time.Sleep(time.Minute) // the next probe comes within half a minute
		again := crm.Requests()[len(requests):]
		if len(again) != 1 || again[0].JSON["event"] != "Signed Up" || again[0].Signature != nil {
			t.Errorf("requests after the replay = %+v, want the event once, with a valid signature", again)
		}

		if err := forwarder.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-run; err != nil {
			t.Error(err)
		}
	})
}
