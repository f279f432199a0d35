package webhooktest_test

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/step"
	"github.com/hookferry/analytics/webhook/webhooktest"
)

// A receiver refuses two requests and takes the third. Within synctest.Test,
// which an example cannot use, the waits between them would take no time.
func Example() {
	network := webhooktest.NewNetwork()
	defer network.Close()
	crm := network.Receiver("https://crm.example/hook", "secret",
		step.Answer(503).Times(2),
		step.Answer(200))

	transport := &http.Transport{
		DialContext:     network.DialContext,
		TLSClientConfig: network.TLSClientConfig(),
	}
	body := `{"type":"track"}`
	sum, err := signature.Sign([]byte(body), "secret")
	if err != nil {
		log.Fatal(err)
	}
	for status := 0; status != 200; {
		req, err := http.NewRequest("POST", crm.URL, strings.NewReader(body))
		if err != nil {
			log.Fatal(err)
		}
		req.Header.Set(signature.Header, sum)
		resp, err := transport.RoundTrip(req)
		if err != nil {
			log.Fatal(err)
		}
		resp.Body.Close()
		status = resp.StatusCode
		fmt.Println("answered", status)
	}
	for _, r := range crm.Requests() {
		fmt.Println("received", r.Number, r.JSON["type"], r.Signature)
	}
	// Output:
	// answered 503
	// answered 503
	// answered 200
	// received 1 track <nil>
	// received 2 track <nil>
	// received 3 track <nil>
}

func ExampleReceiver_Wait() {
	network := webhooktest.NewNetwork()
	defer network.Close()
	crm := network.Receiver("http://crm.example/hook", "")

	go func() {
		client := &http.Client{Transport: &http.Transport{DialContext: network.DialContext}}
		for range 2 {
			if resp, err := client.Post(crm.URL, "application/json", strings.NewReader(`{}`)); err == nil {
				resp.Body.Close()
			}
		}
	}()

	requests, err := crm.Wait(context.Background(), 2)
	fmt.Println(len(requests), err)
	// Output: 2 <nil>
}

// A receiver that fails at random, in a way that depends on the request.
func ExampleDo() {
	random := rand.New(rand.NewPCG(1, 2)) // requests come one at a time here
	flaky := webhooktest.Do(func(r *webhooktest.Request) step.Step {
		switch {
		case r.JSON["type"] == "alias":
			return step.Answer(400)
		case random.IntN(10) == 0:
			return step.Answer(200).HangUp()
		default:
			return step.Answer(200).WithBody("thanks")
		}
	})

	network := webhooktest.NewNetwork()
	defer network.Close()
	crm := network.Receiver("http://crm.example/hook", "", flaky)
	client := &http.Client{Transport: &http.Transport{DialContext: network.DialContext}}
	for _, call := range []string{`{"type":"track"}`, `{"type":"alias"}`} {
		resp, err := client.Post(crm.URL, "application/json", strings.NewReader(call))
		if err != nil {
			fmt.Println(err)
			return
		}
		resp.Body.Close()
		fmt.Println(resp.Status)
	}
	// Output:
	// 200 OK
	// 400 Bad Request
}

// The package comment promises that in a bubble hours of timeouts and waits pass at once, and that
// times are exact.
func TestHoursPassInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := webhooktest.NewNetwork()
		defer network.Close()
		crm := network.Receiver("https://crm.example/hook", "secret", step.Hang())
		client := &http.Client{
			Timeout: 5 * time.Second,
			Transport: &http.Transport{
				DialContext:     network.DialContext,
				TLSClientConfig: network.TLSClientConfig(),
			},
		}
		start := time.Now()
		for wait := time.Second; time.Since(start) < 4*time.Hour; wait = min(2*wait, 10*time.Minute) {
			resp, err := client.Post(crm.URL, "application/json", bytes.NewReader([]byte(`{"type":"track"}`)))
			if err == nil {
				t.Fatalf("a receiver that hangs answered %s, want no answer", resp.Status)
			}
			time.Sleep(wait) // of the bubble
		}
		requests := crm.Requests()
		for i, r := range requests[1:] {
			want := min(time.Second<<i, 10*time.Minute) + 5*time.Second
			if got := r.Time.Sub(requests[i].Time); got != want {
				t.Errorf("request %d came %v after the one before; want %v", r.Number, got, want)
			}
		}
		if n := len(requests); n < 30 {
			t.Errorf("%d requests in four hours; want at least 30", n)
		}
	})
}
