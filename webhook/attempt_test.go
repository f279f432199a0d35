package webhook

import (
	"testing"
	"time"
)

// Stores truncate Due to the microsecond. An endpoint that sent a Retry-After must be open at the
// truncated time. Otherwise the forwarder puts the delivery back again and again for the same
// microsecond.
func TestAnEndpointIsOpenWhenItsDeliveryIsDue(t *testing.T) {
	now := time.Unix(1_000_000, 64)
	d := &Delivery{Expires: now.Add(DefaultWindow)}
	endpoints := []*endpoint{{hash: 1}, {hash: 2}}
	results := []result{{outcome: OutcomeRetryable, retryAfter: time.Minute}, {outcome: OutcomeRetryable, retryAfter: time.Hour}}
	s := decide(d, endpoints, results, time.Time{}, now, pace{timeout: DefaultTimeout})
	due := s.Delivery.Due.Truncate(time.Microsecond)
	if until, closed := closedUntil(&s.Delivery, endpoints[0], due); closed {
		t.Errorf("the endpoint is closed until %v, want it open when the delivery is due, at %v", until, due)
	}
	if _, closed := closedUntil(&s.Delivery, endpoints[1], due); !closed {
		t.Error("the endpoint with the longer Retry-After is open, want it closed")
	}
}
