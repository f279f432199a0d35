package analytics_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/analyticstest"
	"github.com/hookferry/analytics/step"
)

// A printer replaces the network and the collector. It prints the calls that it gets.
type printer struct{}

func (printer) RoundTrip(r *http.Request) (*http.Response, error) {
	defer r.Body.Close()
	var body struct {
		Batch []struct{ Type, UserID, Event string }
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		return nil, err
	}
	for _, call := range body.Batch {
		fmt.Println(strings.TrimSpace(call.Type + " " + call.UserID + " " + call.Event))
	}
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
}

func Example() {
	client := analytics.New("write-key")
	client.Transport = printer{}

	if err := client.Identify(&analytics.Identify{
		UserId: "u-2041",
		Traits: map[string]any{"name": "Ada", "plan": "team"},
	}); err != nil {
		fmt.Println(err)
	}
	if err := client.Track(&analytics.Track{
		UserId:     "u-2041",
		Event:      "Order Completed",
		Properties: map[string]any{"total": 39.95, "items": []string{"lamp", "bulb"}},
	}); err != nil {
		fmt.Println(err)
	}
	if err := client.Close(); err != nil {
		fmt.Println(err)
	}
	// Output:
	// identify u-2041
	// track u-2041 Order Completed
}

func ExampleNew() {
	client := analytics.New("write-key")
	client.Endpoint = "https://collector.example"
	client.FlushAt = 100
	client.FlushAfter = time.Second
	client.MaxMemory = 16 << 20
	client.Logger = slog.Default()
	fmt.Println(client.Close())
	// Output: <nil>
}

func ExampleNew_unusable() {
	client := analytics.New("write-key")
	client.Endpoint = "collector.example"
	err := client.Track(&analytics.Track{UserId: "u-2041", Event: "Signed Up"})
	fmt.Println(err)
	// Output: analytics: Endpoint: is not an http or https URL
}

// An empty write key or Endpoint is read from the environment.
func ExampleNew_environment() {
	os.Setenv("HOOKFERRY_WRITE_KEY", "write-key")
	os.Setenv("HOOKFERRY_ENDPOINT", "https://collector.example")
	defer os.Unsetenv("HOOKFERRY_WRITE_KEY")
	defer os.Unsetenv("HOOKFERRY_ENDPOINT")

	client := analytics.New("")
	client.Transport = printer{}
	err := client.Track(&analytics.Track{UserId: "u-2041", Event: "Signed Up"})
	fmt.Println(err, client.Close())
	// Output:
	// track u-2041 Signed Up
	// <nil> <nil>
}

// In development, a program makes the same calls and sends nothing.
func ExampleClient_off() {
	client := analytics.New("off")
	client.Transport = analyticstest.Discard{}
	err := client.Track(&analytics.Track{UserId: "u-2041", Event: "Signed Up"})
	fmt.Println(err, client.Close(), client.Stats().Delivered)
	// Output: <nil> <nil> 1
}

// A client can use the transport of an http.Client, and a wrapper around it. This wrapper
// adds a header that a gateway requires.
func ExampleClient_transport() {
	collector := analyticstest.NewServer()
	defer collector.Close()
	client := analytics.New("write-key")
	client.Transport = withHeader{collector.Transport()} // in a program, http.DefaultTransport
	err := client.Track(&analytics.Track{UserId: "u-2041", Event: "Signed Up"})
	fmt.Println(err, client.Close())
	request := collector.Batches()[0]
	fmt.Println(request.Path, request.Header.Get("X-Gateway-Key"))
	// Output:
	// <nil> <nil>
	// /v1/batch let-me-in
}

type withHeader struct{ next http.RoundTripper }

func (t withHeader) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("X-Gateway-Key", "let-me-in")
	return t.next.RoundTrip(r)
}

// At MaxMemory a call returns an error at once, and its message is not queued.
func ExampleClient_queueFull() {
	collector := analyticstest.NewServer(step.Hang())
	defer collector.Close()
	client := analytics.New("write-key")
	client.MaxMemory = analytics.MaxBatchSize
	client.Transport = collector.Transport()
	m := &analytics.Track{UserId: "u-2041", Event: "Imported", Properties: map[string]any{"text": strings.Repeat("x", 30<<10)}}
	err := client.Track(m)
	for err == nil {
		err = client.Track(m)
	}
	fmt.Println(errors.Is(err, analytics.ErrQueueFull), client.Stats().Refused)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	client.Shutdown(ctx)
	// Output: true 1
}

func ExampleClient_Identify() {
	client := analytics.New("write-key")
	client.Transport = printer{}
	defer client.Close()

	err := client.Identify(&analytics.Identify{
		UserId: "u-2041",
		Traits: map[string]any{"email": "ada@example.com"},
	})
	fmt.Println(err)
	// Output:
	// <nil>
	// identify u-2041
}

func ExampleClient_Track() {
	client := analytics.New("write-key")
	defer client.Close()

	err := client.Track(&analytics.Track{
		UserId:     "u-2041",
		Event:      "Order Completed",
		Properties: map[string]any{"cart": []any{map[string]any{"price": math.NaN()}}},
	})
	fmt.Println(err)

	var field *analytics.FieldError
	if errors.As(err, &field) {
		fmt.Println(field.Field)
	}
	// Output:
	// analytics: track: Properties.cart[0].price cannot be sent: not a number
	// Properties.cart[0].price
}

func ExampleClient_Page() {
	client := analytics.New("write-key")
	client.Transport = printer{}
	defer client.Close()

	err := client.Page(&analytics.Page{
		UserId: "u-2041",
		Name:   "Pricing",
		Traits: map[string]any{"url": "https://shop.example/pricing", "referrer": "https://shop.example/"},
	})
	fmt.Println(err)
	// Output:
	// <nil>
	// page u-2041
}

func ExampleClient_Screen() {
	client := analytics.New("write-key")
	client.Transport = printer{}
	defer client.Close()

	fmt.Println(client.Screen(&analytics.Screen{UserId: "u-2041", Name: "Home"}))
	// Output:
	// <nil>
	// screen u-2041
}

func ExampleClient_Group() {
	client := analytics.New("write-key")
	client.Transport = printer{}
	defer client.Close()

	err := client.Group(&analytics.Group{
		UserId:  "u-2041",
		GroupId: "g-7",
		Traits:  map[string]any{"name": "Lamps & Sons", "employees": 12},
	})
	fmt.Println(err)
	// Output:
	// <nil>
	// group u-2041
}

func ExampleClient_Alias() {
	client := analytics.New("write-key")
	client.Transport = printer{}
	defer client.Close()

	fmt.Println(client.Alias(&analytics.Alias{PreviousId: "visitor-5", UserId: "u-2041"}))
	// Output:
	// <nil>
	// alias u-2041
}

// The destination switches of a call say to which destinations it may be forwarded.
func ExampleTrack_integrations() {
	m := &analytics.Track{
		UserId:       "u-2041",
		Event:        "Order Completed",
		Integrations: map[string]any{"All": false, "Webhooks": true},
		Timestamp:    "2024-02-29T12:00:00Z",
		MessageId:    "order-9931",
	}
	call, err := m.AppendJSON(nil)
	fmt.Printf("%s %v\n", call, err)
	// Output:
	// {"type":"track","messageId":"order-9931","timestamp":"2024-02-29T12:00:00.000Z","userId":"u-2041","event":"Order Completed","integrations":{"All":false,"Webhooks":true}} <nil>
}

// A call with an old timestamp imports historical data.
func ExampleFormatTime() {
	at := time.Date(2019, time.March, 3, 14, 5, 0, 0, time.FixedZone("CET", 3600))
	m := &analytics.Track{UserId: "u-2041", Event: "Order Completed", Timestamp: analytics.FormatTime(at)}
	fmt.Println(m.Timestamp, m.Validate())
	// Output: 2019-03-03T13:05:00.000Z <nil>
}

func ExampleClient_Flush() {
	client := analytics.New("write-key")
	client.Transport = printer{}
	defer client.Close()

	client.Track(&analytics.Track{UserId: "u-2041", Event: "Function Invoked"})

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := client.Flush(ctx); err != nil {
		fmt.Println(err)
	}
	fmt.Println("flushed")
	// Output:
	// track u-2041 Function Invoked
	// flushed
}

func ExampleClient_Shutdown() {
	collector := analyticstest.NewServer(step.Answer(http.StatusServiceUnavailable).With("Retry-After", "120"))
	defer collector.Close()
	client := analytics.New("write-key")
	client.Transport = collector.Transport()

	client.Track(&analytics.Track{UserId: "u-2041", Event: "Signed Up"})

	deadline := time.Now() // a program gives it some seconds
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	err := client.Shutdown(ctx)
	fmt.Println("deadline:", errors.Is(err, context.DeadlineExceeded))

	var undelivered *analytics.UndeliveredError
	if errors.As(err, &undelivered) {
		fmt.Println("dropped:", undelivered.Dropped)
	}
	// Output:
	// deadline: true
	// dropped: 1
}

// OnDelivery can read every message. This example prints the messages that could not be
// delivered.
func ExampleDelivery_Messages() {
	collector := analyticstest.NewServer(step.Answer(http.StatusNotFound))
	defer collector.Close()
	client := analytics.New("write-key")
	client.Transport = collector.Transport()
	client.OnDelivery = func(d analytics.Delivery) {
		if d.Err == nil {
			return
		}
		fmt.Println(d.Count, d.Reason)
		for message, err := range d.Messages() {
			fmt.Fprintf(os.Stdout, "%s %v\n", message, err)
		}
	}
	client.Identify(&analytics.Identify{UserId: "u-2041", MessageId: "m-1", Timestamp: "2024-02-29T12:00:00Z"})
	client.Close()
	// Output:
	// 1 refused
	// {"type":"identify","messageId":"m-1","timestamp":"2024-02-29T12:00:00.000Z","userId":"u-2041"} analytics: the collector answered 404 Not Found
}

func ExampleClient_Stats() {
	client := analytics.New("write-key")
	client.Transport = printer{}
	for range 3 {
		client.Track(&analytics.Track{UserId: "u-2041", Event: "Signed In"})
	}
	client.Close()

	s := client.Stats()
	fmt.Println(s.Queued, s.Delivered, s.Dropped, s.Pending)
	// Output:
	// track u-2041 Signed In
	// track u-2041 Signed In
	// track u-2041 Signed In
	// 3 3 0 0
}
