package webhook

import "time"

// A breaker keeps a destination that is down from being asked with all that
// waits for it. There is one for a destination, not for each of its endpoints:
// an attempt ends when the first of them takes the delivery, so one that is
// dead beside others costs no slot, and each is to be asked with every
// delivery.
//
// It opens after several failures in a row. While it is open there is one attempt
// at a time. Deliveries that were attempted before keep their schedule and their
// window, with at least retrySpace between two attempts. The others wait, with
// their window not begun, but for one as a probe at intervals that double from
// firstProbe to lastProbe, each jittered by half. Any answer of the destination
// closes it, and the lane starts with two slots.
//
// A destination that is gone for good must not fill the store: a delivery that was
// due for as long as a window lasts, with the breaker open all the time, lapses.
type breaker struct {
	open   bool
	points int8      // of the failures since the last answer; see openPoints
	probes int8      // intervals so far, since forgive
	since  time.Time // when it opened
	last   Reason    // why the latest attempt failed

	retry time.Time // while open: when there may be an attempt
	probe time.Time // while open: when it may be of a delivery that was not attempted before
}

const (
	firstProbe = time.Second
	lastProbe  = 30 * time.Second
	// retrySpace is the least time between attempts of deliveries that were
	// attempted before.
	retrySpace = time.Second

	// The breaker opens at openPoints. An attempt that timed out says more
	// than one that was refused, and costs more.
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

// fail notes a failed attempt and what becomes of the delivery, and reports
// whether it opens the breaker. Attempts other than the trial were begun before
// it opened, and say nothing new while it is open.
func (b *breaker) fail(p pace, trial bool, s *Settlement, now time.Time) (opened bool) {
	b.last = lastReason(&s.Delivery)
	switch {
	case b.open && !trial:
		return false
	case !b.open:
		b.points++
		if p == timedOut {
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
	case s.Verdict == Bury:
		b.retry = now // others may be at the end of their window too
	case s.Delivery.Due.Before(b.retry):
		b.retry = s.Delivery.Due // a lone delivery keeps its schedule
	}
	return opened
}

// admits reports whether d, the first that waits, may be attempted. If not,
// none of the lane may before the next probe.
func (b *breaker) admits(d *Delivery, now time.Time) bool {
	if !b.open || !d.Expires.IsZero() || !now.Before(b.probe) {
		return true
	}
	b.retry = b.probe
	return false
}

// lapsed reports whether d, due and not attempted, has waited for a whole window
// with the breaker open.
func (b *breaker) lapsed(d *Delivery, now time.Time, window time.Duration) bool {
	from := b.since
	if d.Due.After(from) {
		from = d.Due
	}
	return b.open && d.Expires.IsZero() && !now.Before(from.Add(window))
}
