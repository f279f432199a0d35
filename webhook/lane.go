package webhook

import (
	"sync/atomic"

	"github.com/hookferry/analytics/webhook/internal/schedule"
)

type (
	scheduler = schedule.Scheduler[laneState, *Delivery]
	lane      = schedule.Lane[laneState, *Delivery]
	slot      = schedule.Slot[laneState, *Delivery]
	item      = schedule.Item[*Delivery]
)

// A laneState is the forwarder's state of one destination, beside that of the scheduler.
type laneState struct {
	target     atomic.Pointer[target] // nil until the destination was looked up
	stragglers atomic.Int32           // deliveries that one endpoint has taken while requests to others are in flight
	lapsed     atomic.Bool            // a delivery with a Key lapsed; see worker.window
	failures   logState
	deaths     logState
}

// itemOf returns the claimed delivery d in the form that the scheduler uses.
func itemOf(d *Delivery) item {
	it := item{Destination: d.Destination, Value: d, Claim: d.Claim, Size: int64(len(d.Body)), Retry: !d.Expires.IsZero(), Due: d.Due}
	it.Group, it.Apart = groupOf(d)
	return it
}
