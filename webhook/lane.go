package webhook

import (
	"sync/atomic"
	"time"

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

// compiled is a target with the Destination it was made of.
type compiled struct {
	source *Destination
	target *target
}

// newScheduler returns the scheduler of f.
func (f *Forwarder) newScheduler() *schedule.Scheduler {
	c := &f.config
	return schedule.New(schedule.Config{
		Slots:   c.MaxInFlight,
		Bytes:   c.MaxBytesInFlight,
		Window:  c.Window,
		Limits:  f.staticLimits,
		NewData: func(l *schedule.Lane) any { return &lane{Lane: l} },
		Start:   func() { f.workers.Go(newWorker(f).run) },
		Wake:    f.wake,
		Now:     c.Store.Now,
		Jitter:  jitter,
	})
}

// staticLimits returns the limits of one of Config.Destinations.
func (f *Forwarder) staticLimits(destination string) schedule.Limits {
	if c := f.static[destination]; c != nil {
		return c.target.limits
	}
	return schedule.Limits{}
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

// returnAll gives claims back.
func (f *Forwarder) returnAll(items []schedule.Item) {
	for i := range items {
		f.settler.giveBack(items[i].Value.(*Delivery))
	}
}

// now is the time by the clock of the store.
func (f *Forwarder) now() time.Time { return f.config.Store.Now() }
