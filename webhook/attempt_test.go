package webhook

import (
	"testing"
	"time"
)

// Stores keep Due to the microsecond. An endpoint that sent a Retry-After must be open by then.
// Otherwise the forwarder puts the delivery back again and again, each time for the same microsecond.
func TestAnEndpointIsOpenWhenItsDeliveryIsDue(t *testing.T) {
	now := time.Unix(1_000_000, 64)
	d := &Delivery{Expires: now.Add(DefaultWindow)}
	endpoints := []*endpoint{{hash: 1}, {hash: 2}}
	results := []result{{outcome: OutcomeRetryable, retryAfter: time.Minute}, {outcome: OutcomeRetryable, retryAfter: time.Hour}}
	s := decide(d, endpoints, results, time.Time{}, now, pace{timeout: DefaultTimeout})
	due := s.Delivery.Due.Truncate(time.Microsecond)
	if until, closed := closedUntil(&s.Delivery, endpoints[0], due); closed {
		t.Errorf("the delivery is due %v, and the endpoint is closed until %v", due, until)
	}
	if _, closed := closedUntil(&s.Delivery, endpoints[1], due); !closed {
		t.Error("the other endpoint is open too early")
	}
}
