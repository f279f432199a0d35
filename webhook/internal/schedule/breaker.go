package schedule

import (
	"cmp"
	"time"
)

// A breaker keeps a destination that is down from being asked with everything that waits
// for it. There is one for a destination, not one for each of its endpoints: an attempt
// ends when the first of them takes the delivery, so a dead endpoint beside a healthy one
// costs no slot, and each endpoint is to be asked with every delivery.
//
// It opens after several failures in a row. While it is open there is one attempt at a
// time. Retries keep their schedule and their retry window, with at least retrySpace
// between two attempts. Fresh deliveries wait, and their retry window does not begin. One
// is attempted as a probe if there was no attempt for a time, which doubles with each from
// firstProbe to lastProbe, jittered by half: while retries come more often than that, they
// tell as much, and no further deliveries begin a schedule. Any answer of the destination
// closes the breaker, and the lane starts with one slot.
//
// A destination that is gone for good must not fill the store: a fresh delivery that was
// due for a whole retry window, with the breaker open all the time, lapses.
type breaker struct {
	open   bool
	points int8      // of the failures since the last answer; see openPoints
	probes int8      // intervals so far, since forgive
	since  time.Time // when it opened
	reason string    // why the latest attempt failed

	retry time.Time // while open: when a retry may be attempted
	probe time.Time // while open: when a fresh delivery may be

	window time.Duration // Limits.Window
}

const (
	firstProbe = time.Second
	lastProbe  = 30 * time.Second
	// retrySpace is the least time between two attempts while the breaker is open.
	retrySpace = time.Second

	// The breaker opens at openPoints. An attempt that timed out says more than one
	// that was refused, and costs more.
	openPoints    = 10
	doubtPoints   = 3
	timeoutPoints = 3
)

// doubtful reports whether enough attempts failed to doubt the destination.
func (b *breaker) doubtful() bool { return b.points >= doubtPoints }

// answer notes an answer, and reports whether the breaker was open.
func (b *breaker) answer() bool {
	was := b.open
	b.open, b.points = false, 0
	return was
}

// forgive has the next probes begin with the shortest interval again.
func (b *breaker) forgive() { b.probes = 0 }

// A Failure is an attempt that failed for the destination's fault.
type Failure struct {
	// TimedOut says that the attempt held its slot for as long as one can.
	TimedOut bool
	// Reason is why it failed.
	Reason string
	// Due is when the delivery is attempted again, zero if it is given up.
	Due time.Time
}

// fail notes a failed attempt, and reports whether it opens the breaker. Attempts other
// than the trial were begun before it opened, and say nothing new while it is open.
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
		b.retry = now // others may be at the end of their window too
	case f.Due.Before(b.retry):
		b.retry = f.Due // a lone delivery keeps its schedule
	}
	return opened
}

// lapses returns when a fresh delivery that is due at a time has waited for a whole
// retry window with the breaker open, if nothing changes.
func (b *breaker) lapses(due time.Time, window time.Duration) time.Time {
	if due.Before(b.since) {
		due = b.since
	}
	return due.Add(cmp.Or(b.window, window))
}

// next returns when the next attempt of l may begin, once a delivery is due.
func (b *breaker) next(l *Lane) time.Time {
	if l.retry.due.IsZero() {
		return b.probe
	}
	return earlier(b.retry, b.probe)
}
