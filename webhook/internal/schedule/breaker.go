package schedule

import (
	"cmp"
	"time"
)

// A breaker keeps a destination that is down from getting a request for each delivery that waits for
// it. A destination has one breaker, not one for each endpoint: an attempt ends when the first endpoint
// takes the delivery. So a dead endpoint beside a healthy one costs no slot, and every endpoint gets a
// request for every delivery.
//
// The breaker opens after several failures in a row. While it is open, the lane makes one attempt at a
// time. Retries keep their schedule and their retry window, with at least retrySpace between two
// attempts. Fresh deliveries wait, and their retry window does not begin. If there was no attempt for a
// time, the lane attempts one of them as a probe. That time doubles with each probe, from firstProbe to
// lastProbe, jittered by half. While retries come more often than that, they serve as probes, and no
// further deliveries begin a schedule. Any answer of the destination closes the breaker, and the lane
// starts with one slot.
//
// A destination that is gone for good must not fill the store. So a fresh delivery lapses that was due
// for a whole retry window with the breaker open all the time.
type breaker struct {
	open   bool
	points int8      // for the failures since the last answer; see openPoints
	probes int8      // since forgive
	since  time.Time // when it opened
	reason string    // why the latest attempt failed

	retry time.Time // while open: when a retry may be attempted next
	probe time.Time // while open: when a fresh delivery may be attempted next

	window time.Duration // Limits.Window
}

const (
	firstProbe = time.Second
	lastProbe  = 30 * time.Second
	// retrySpace is the least time between two attempts while the breaker is open.
	retrySpace = time.Second

	// The breaker opens at openPoints. An attempt that timed out says more than a refused
	// connection, and costs more.
	openPoints    = 10
	doubtPoints   = 3
	timeoutPoints = 3
)

// doubtful reports whether enough attempts have failed to doubt the destination.
func (b *breaker) doubtful() bool { return b.points >= doubtPoints }

// answer notes an answer, and reports whether the breaker was open.
func (b *breaker) answer() bool {
	was := b.open
	b.open, b.points = false, 0
	return was
}

// forgive lets the next probes begin with the shortest interval again.
func (b *breaker) forgive() { b.probes = 0 }

// A Failure is an attempt that failed because of the destination.
type Failure struct {
	// TimedOut says that the attempt took as long as an attempt can.
	TimedOut bool
	// Reason is why it failed.
	Reason string
	// Due is when the delivery is attempted again, zero if it is given up.
	Due time.Time
}

// fail notes a failed attempt, and reports whether it opens the breaker. While the breaker is open,
// only the trial counts: the other attempts began before, and say nothing new.
func (b *breaker) fail(f Failure, trial bool, now time.Time, jitter func(time.Duration) time.Duration) (opened bool) {
	b.reason = f.Reason
	switch {
	case b.open && !trial:
		return false
	case !b.open:
		b.points++
		if f.TimedOut {
			b.points += timeoutPoints - 1
		}
		if b.points < openPoints {
			return false
		}
		b.open, b.since = true, now
		opened = true
	}
	wait := min(firstProbe<<b.probes, lastProbe)
	b.probes = min(b.probes+1, 10)
	b.probe = now.Add(wait/2 + jitter(wait/2+1))
	b.retry = now.Add(retrySpace)
	switch {
	case f.Due.IsZero():
		b.retry = now // other deliveries may be at the end of their window, too
	case f.Due.Before(b.retry):
		b.retry = f.Due // a lone delivery keeps its schedule
	}
	return opened
}

// lapses returns when a fresh delivery, due at a time, has waited for a whole retry window with the
// breaker open, if the breaker stays open.
func (b *breaker) lapses(due time.Time, window time.Duration) time.Time {
	if due.Before(b.since) {
		due = b.since
	}
	return due.Add(cmp.Or(b.window, window))
}

// next returns when l may make its next attempt, if a delivery is due.
func (b *breaker) next(l *Lane) time.Time {
	if l.retry.due.IsZero() {
		return b.probe
	}
	return earlier(b.retry, b.probe)
}
