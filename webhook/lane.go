package webhook

import (
	"sync/atomic"

	"github.com/hookferry/analytics/webhook/internal/schedule"
)

// A lane is what the forwarder knows of a destination, beside the scheduler's part of it.
type lane struct {
	*schedule.Lane

	target     atomic.Pointer[target] // nil until the destination was looked up
	stragglers atomic.Int32           // deliveries that were taken, with other requests still in flight
	failures   logState
	deaths     logState
}

// itemOf returns the claimed delivery d as the scheduler sees it.
func itemOf(d *Delivery) schedule.Item {
	return schedule.Item{Destination: d.Destination, Value: d, Size: int64(len(d.Body)), Retry: !d.Expires.IsZero(), Due: d.Due}
}
