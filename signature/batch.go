package signature

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// MaxBatch is the maximum number of events in a batch.
const MaxBatch = 1000

// An Event is one event of a request.
type Event struct {
	// ID is the webhook-id of the event: 1 to 1,024 bytes of visible ASCII without a full stop. It is
	// the same whether the event comes alone or in a batch.
	ID string `json:"id"`
	// Body is a JSON object: the body of a request that has the event alone. Its bytes are those that
	// were signed, also in a batch.
	Body json.RawMessage `json:"event"`
}

// Events returns the events of a verified request with the given [StandardID], in the order in which
// they apply. A body that is a JSON array is a batch:
//
//	[{"id":"...","event":{...}},{"id":"...","event":{...}}]
//
// The webhook-id of a batch is made of the ids of its events, in their order, and each event has
// its own id. Any other body is one event with the id of the request. The error says what is wrong
// with a batch: it is no such array, an id does not have the form of Event.ID, an event is no JSON
// object, or there are more than MaxBatch.
func Events(id string, body []byte) ([]Event, error) {
	if trimmed := bytes.TrimLeft(body, " \t\r\n"); len(trimmed) == 0 || trimmed[0] != '[' {
		return []Event{{id, body}}, nil
	}
	var events []Event
	if err := json.Unmarshal(body, &events); err != nil {
		return nil, fmt.Errorf("signature: batch: %w", err)
	}
	if len(events) > MaxBatch {
		return nil, fmt.Errorf("signature: batch: %d events; %d are allowed", len(events), MaxBatch)
	}
	for i, e := range events {
		if e.ID == "" || !wellFormedID(e.ID) {
			return nil, fmt.Errorf("signature: batch: event %d: its id is not 1 to %d bytes of visible ASCII without a full stop", i, maxStandardID)
		}
		if len(e.Body) == 0 || e.Body[0] != '{' {
			return nil, fmt.Errorf("signature: batch: event %d is not a JSON object", i)
		}
	}
	return events, nil
}
