package schedule

import (
	"cmp"
	"time"
)

// A breaker is the circuit breaker of a destination. It keeps a destination that is down from
// getting a request for each waiting delivery. Endpoints have no breakers: an attempt ends when the
// first endpoint takes the delivery, so a dead endpoint beside a healthy one costs no slot.
//
// The breaker opens after several failures in a row. While it is open, the lane makes one attempt
// at a time. Retries keep their schedule and their retry window, but any two attempts are at least
// retrySpace apart. Fresh deliveries wait, and their retry window does not begin. After an interval
// without an attempt, a fresh one is attempted as a probe. The interval doubles with each probe,
// from firstProbe to lastProbe, with jitter over its second half. If retries come more often, they
// serve as probes. Any answer closes the breaker, and the lane starts again with one slot.
//
// A fresh delivery lapses, and is given up without an attempt, once it has been due for a whole
// retry window while the breaker was open, so that a dead destination does not fill the store.
type breaker struct {
	open   bool
	points int8      // counts the failures since the last answer; see openPoints
	probes int8      // probes in a row; a lane that recovers resets them
	since  time.Time // when the breaker opened
	reason string    // why the latest attempt failed

	retry time.Time // while open: when a retry may be attempted next
	probe time.Time // while open: when a fresh delivery may be attempted next
	asked int8      // while open: how many attempts wait neither for retry nor for probe; see Recheck

	window time.Duration // Limits.Window
}

const (
	firstProbe = time.Second
	lastProbe  = 30 * time.Second
	retrySpace = time.Second // the least time between two attempts while the breaker is open

	// At doubtPoints the destination is doubtful, and at openPoints the breaker opens. A timeout
	// counts as timeoutPoints failures: it says more than a refused connection, and keeps a slot for
	// longer.
	openPoints    = 10
	doubtPoints   = 3
	timeoutPoints = 3
)

// answer records an answer, which closes the breaker, and reports whether the breaker was open.
func (b *breaker) answer() bool {
	was := b.open
	b.open, b.points, b.asked = false, 0, 0
	return was
}

// A Failure is an attempt that failed because of the destination.
type Failure struct {
	TimedOut bool // the time of the attempt was up
	Reason   string
	Due      time.Time // when the delivery is attempted again, zero if it is given up
	Keyed    bool      // others may be behind the delivery until it is given up
}

// fail records a failed attempt, and reports whether it opens the breaker. While the breaker is
// open, only a trial counts: an attempt that began after it opened. Older attempts say nothing new.
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
		b.retry = now // the window of other deliveries may have ended, too
		if f.Keyed {
			b.probe = now // likewise of one that is fresh, because it was behind this one
		}
	case f.Due.Before(b.retry):
		b.retry = f.Due // a single delivery keeps its schedule
	}
	return opened
}

// lapses returns when a fresh delivery that is due at due lapses, if the breaker stays open. The
// argument window is the retry window of destinations without one of their own.
func (b *breaker) lapses(due time.Time, window time.Duration) time.Time {
	if due.Before(b.since) {
		due = b.since
	}
	return due.Add(cmp.Or(b.window, window))
}
