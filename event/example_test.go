package event_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/event"
)

func ExampleEncoder_Append() {
	encoder, err := event.NewEncoder(event.Envelope{ReceivedAt: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)})
	if err != nil {
		fmt.Println(err)
		return
	}
	call := `{"type": "track", "userId": "u1", "event": "Signed Up", "messageId": "m1", "properties": {"plan": "pro", "seats": 3.0}}`
	_, e, err := encoder.Append(nil, []byte(call))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(e.ID)
	fmt.Printf("%s\n", e.Body)
	// Output:
	// m1
	// {"version":1,"type":"track","userId":"u1","event":"Signed Up","properties":{"plan":"pro","seats":3},"timestamp":"2026-03-01T12:00:00.000Z","messageId":"m1","context":{},"receivedAt":"2026-03-01T12:00:00.000Z"}
}

func ExampleEncoder_Encode() {
	encoder, err := event.NewEncoder(event.Envelope{ReceivedAt: time.Date(2026, 3, 1, 12, 0, 1, 0, time.UTC)})
	if err != nil {
		fmt.Println(err)
		return
	}
	e, err := encoder.Encode(&analytics.Identify{UserId: "u1", Traits: map[string]any{"plan": "pro"}, MessageId: "m1", Timestamp: "2026-03-01T12:00:00Z"})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s\n", e.Body)
	// Output:
	// {"version":1,"type":"identify","userId":"u1","traits":{"plan":"pro"},"timestamp":"2026-03-01T12:00:00.000Z","messageId":"m1","context":{},"originalTimestamp":"2026-03-01T12:00:00.000Z","receivedAt":"2026-03-01T12:00:01.000Z"}
}

func ExampleJSON() {
	call := event.JSON(`{"type": "track", "event": "Signed Up"}`)
	_, err := new(event.Encoder).Encode(call)
	fmt.Println(err)

	var callErr *event.CallError
	if errors.As(err, &callErr) {
		fmt.Println(callErr.Field, callErr.Code)
	}
	// Output:
	// event: call: userId or anonymousId is required
	// userId missing_field
}

func ExampleNewEncoder() {
	encoder, err := event.NewEncoder(event.Envelope{
		ReceivedAt: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC),
		Context:    []byte(`{"library": {"name": "analytics-go"}}`),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, call := range []string{
		`{"type": "identify", "userId": "u1", "messageId": "m1"}`,
		`{"type": "identify", "userId": "u2", "messageId": "m2", "context": {"locale": "de"}}`,
	} {
		e, err := encoder.Encode(event.JSON(call))
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Printf("%s\n", e.Body)
	}
	// Output:
	// {"version":1,"type":"identify","userId":"u1","traits":{},"timestamp":"2026-03-01T12:00:00.000Z","messageId":"m1","context":{"library":{"name":"analytics-go"}},"receivedAt":"2026-03-01T12:00:00.000Z"}
	// {"version":1,"type":"identify","userId":"u2","traits":{},"timestamp":"2026-03-01T12:00:00.000Z","messageId":"m2","context":{"library":{"name":"analytics-go"},"locale":"de"},"receivedAt":"2026-03-01T12:00:00.000Z"}
}
