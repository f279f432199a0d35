package schedule

import "time"

// A backlog limits the attempts of late deliveries, so that they do not take all processors while
// fresh deliveries arrive. During that time the lanes that are behind may together have, for each
// processor, only backlogAttempts attempts that began in about the last millisecond. Older attempts
// do not count: they wait for their receivers, and take no processor. If receivers answer at once,
// the backlog still drains two thirds as fast as with many attempts.
type backlog struct {
	bound int

	lane  *Lane     // the latest lane whose delivery was claimed soon after it was due
	until time.Time // when the bound ends, unless another fresh delivery comes

	period int64  // the current period, in backlogPeriods since 1970
	begun  [2]int // attempts in flight that began in the current period, and in the previous one
}

const (
	backlogAttempts = 1 // for each processor; see backlog
	// A delivery is late if it is claimed more than lateAfter after its Due. A lane is behind if
	// the delivery that it has claimed last was late.
	lateAfter = 100 * time.Millisecond
	// backlogFor is how long the limit stays after the latest delivery that was not late.
	backlogFor = time.Second
	// An attempt counts in the period in which it begins and in the next one, so for 0.5 to 1 ms.
	backlogPeriod = 500 * time.Microsecond
)

// note records that a delivery of l was claimed now. The argument due is its Due.
func (b *backlog) note(l *Lane, due, now time.Time) {
	l.behind = now.Sub(due) > lateAfter
	switch {
	case l.behind && b.lane == l:
		b.lane = nil // a lane does not give way to itself
	case !l.behind && l.standing != doubtful:
		b.lane, b.until = l, now.Add(backlogFor)
	}
}

// on reports whether the attempts of lanes that are behind are limited.
func (b *backlog) on(now time.Time) bool { return b.lane != nil && now.Before(b.until) }

// free reports whether a lane that is behind may begin an attempt now.
func (b *backlog) free(now time.Time) bool {
	if !b.on(now) {
		return true
	}
	b.advance(now)
	return b.begun[0]+b.begun[1] < b.bound
}

// advance makes the period of now the current one.
func (b *backlog) advance(now time.Time) {
	p := now.UnixNano() / int64(backlogPeriod)
	switch p - b.period {
	case 0:
	case 1:
		b.begun = [2]int{0, b.begun[0]}
	default:
		b.begun = [2]int{}
	}
	b.period = p
}

// begin counts an attempt of a lane that is behind, and returns its period for end.
func (b *backlog) begin(now time.Time) int64 {
	b.advance(now)
	b.begun[0]++
	return b.period
}

// end records the end of an attempt. period is the result of begin, or 0 if begin was not called.
func (b *backlog) end(period int64) {
	if i := b.period - period; period != 0 && (i == 0 || i == 1) {
		b.begun[i]--
	}
}
