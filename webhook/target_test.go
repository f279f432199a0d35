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
	to := &target{source: new(Destination), timeout: DefaultTimeout, endpoints: endpoints}
	s := to.decide(d, endpoints, results, now, 0)
	due := s.Delivery.Due.Truncate(time.Microsecond)
	open, first := to.open(&s.Delivery, due, nil)
	if len(open) != 1 || open[0] != endpoints[0] || !first.Equal(due) {
		t.Errorf("open when the delivery is due, at %v: %d endpoints, from %v on; want the one with the shorter Retry-After", due, len(open), first)
	}
}
