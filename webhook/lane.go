package webhook

import (
	"sync/atomic"

	"github.com/hookferry/analytics/webhook/internal/schedule"
)

// A lane is what the forwarder knows of a destination beside its schedule.
type lane struct {
	*schedule.Lane

	target     atomic.Pointer[compiled]
	account    atomic.Pointer[account]
	stragglers atomic.Int32 // deliveries with requests left on their way
	failures   logState
	deaths     logState
}

// itemOf returns d, which is claimed, as the scheduler sees it.
func itemOf(d *Delivery) schedule.Item {
	return schedule.Item{Destination: d.Destination, Value: d, Size: int64(len(d.Body)), Retry: !d.Expires.IsZero(), Due: d.Due}
}

// failureOf says what an attempt that failed tells about the destination; false if it
// tells that the destination answers.
func failureOf(results []result, s *Settlement) (schedule.Failure, bool) {
	failed := schedule.Failure{Reason: string(lastReason(&s.Delivery))}
	if s.Verdict == Retry {
		failed.Due = s.Delivery.Due
	}
	found := false
	for i := range results {
		if r := &results[i]; r.outcome == retryable {
			found = true
			failed.TimedOut = failed.TimedOut || r.attempt.Reason == ReasonTimeout
		}
	}
	return failed, found
}
