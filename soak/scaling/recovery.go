package main

import "time"

// late is how long a delivery may wait in a lane that has recovered.
const late = time.Second

// recover sets l.recovered once all deliveries of the outage have been attempted. It
// reports whether all of them are settled, too.
func (l *lane) recover(now time.Duration) bool {
	if l.open {
		return false
	}
	due := now
	if l.backlog() > 0 {
		due, _ = l.earliest()
	}
	if l.recovered == 0 && due >= max(now-late, l.receiver.to) {
		l.recovered = now
	}
	return l.recovered > 0 && l.old == 0
}

// The method drain needs a backlog of at least flows fresh deliveries for each slot of the
// lane.
const flows = 4

// drain is a faster advance for a lane that uses all its slots to work off a long backlog.
// It counts as done as many deliveries as the slots allow between the times from and to,
// at most budget, and returns their number. The attempts in flight stay in flight, and end
// later by the same time. For a lane in any other state, drain does nothing and returns
// false.
func (l *lane) drain(from, to time.Duration, budget int) (n int, ok bool) {
	slots := l.allowed()
	switch {
	case l.open || slots == l.slots && slots < l.limit || len(l.active) < slots || l.interval > 0:
		return 0, false
	case l.waiting < flows*slots:
		return 0, false
	case len(l.retries) > 0 && l.retries[0].at < l.first():
		return 0, false
	}
	l.credit += float64(slots) * float64(to-from) / float64(l.receiver.latency.average())
	n = min(int(l.credit), budget, l.waiting-slots)
	l.credit = min(l.credit-float64(n), 1)
	for left := n; left > 0; {
		s := &l.fresh[0]
		took := min(left, s.n)
		if s.from < l.receiver.to {
			l.caughtUp = to
		}
		s.from += time.Duration(float64(s.to-s.from) * float64(took) / float64(s.n))
		if s.n -= took; s.n == 0 {
			l.fresh = l.fresh[1:]
		}
		left -= took
	}
	l.headed = false
	l.waiting -= n
	l.done += n
	l.attempts += n
	for i := range l.active {
		l.active[i].at += to - from
	}
	l.touched = to
	return n, true
}
