package webhook

import (
	"sync/atomic"

	"github.com/hookferry/analytics/webhook/internal/schedule"
)

// A lane is the forwarder's state of one destination. The embedded schedule.Lane is the
// scheduler's.
type lane struct {
	*schedule.Lane

	target     atomic.Pointer[target] // nil until the destination was looked up
	stragglers atomic.Int32           // deliveries that one endpoint has taken while requests to others are in flight
	failures   logState
	deaths     logState
}

// itemOf returns the claimed delivery d in the form that the scheduler uses.
func itemOf(d *Delivery) schedule.Item {
	return schedule.Item{Destination: d.Destination, Value: d, Size: int64(len(d.Body)), Retry: !d.Expires.IsZero(), Due: d.Due}
}
