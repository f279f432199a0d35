package schedule

import "time"

// A backlog limits the attempts of old deliveries while fresh ones arrive. It keeps a backlog from
// taking the processors. If receivers answer at once, draining a backlog takes nothing but
// processor time. With many attempts in flight, every goroutine then waits behind dozens of others.
// With only one attempt at a time for each processor, the backlog still drains two thirds as fast
// as with many attempts.
//
// So while fresh deliveries arrive, the lanes that are behind may together have only
// backlogAttempts attempts in their first millisecond, for each processor. An attempt that lasts
// longer waits for its receiver and takes no processor. Such an attempt no longer counts, so
// distant and hanging receivers do not use up the bound.
type backlog struct {
	bound int

	lane  *Lane     // the latest lane whose delivery was claimed soon after it was due
	until time.Time // when the bound ends, unless another fresh delivery comes

	period int64  // the current period, in backlogPeriods since 1970
	begun  [2]int // attempts in flight that began in the current period, and in the previous one
}

const (
	// backlogAttempts is how many attempts of lanes that are behind may be in their first
	// millisecond, for each processor.
	backlogAttempts = 1
	// lateAfter is the delay after its Due from which a claimed delivery counts as late. The lane
	// of a late delivery is behind.
	lateAfter = 100 * time.Millisecond
	// backlogFor is how long the attempts of lanes that are behind stay limited after the latest
	// delivery that was not late.
	backlogFor = time.Second
	// backlogPeriod is the unit of time in which attempts are counted. An attempt counts in
	// the period in which it begins and in the next one, so for 0.5 to 1 ms.
	backlogPeriod = 500 * time.Microsecond
)

// note records that a delivery of l was claimed. due is when the delivery was due.
func (b *backlog) note(l *Lane, due, now time.Time) {
	l.behind = now.Sub(due) > lateAfter
	switch {
	case l.behind && b.lane == l:
		b.lane = nil // a lane does not give way to itself
	case !l.behind && l.standing != doubtful:
		b.lane, b.until = l, now.Add(backlogFor)
	}
}

// on reports whether fresh deliveries arrive, so that the attempts of lanes that are behind are
// limited.
func (b *backlog) on(now time.Time) bool { return b.lane != nil && now.Before(b.until) }

// free reports whether a lane that is behind may begin an attempt now.
func (b *backlog) free(now time.Time) bool {
	if !b.on(now) {
		return true
	}
	b.advance(now)
	return b.begun[0]+b.begun[1] < b.bound
}

// advance makes the period of now the current one. It drops the counts of attempts that began
// before the previous period.
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

// begin counts an attempt of a lane that is behind, and returns its period, which is the argument
// for end.
func (b *backlog) begin(now time.Time) int64 {
	b.advance(now)
	b.begun[0]++
	return b.period
}

// end records the end of an attempt. period is the result of begin, or 0 for an attempt that begin
// did not count.
func (b *backlog) end(period int64) {
	if i := b.period - period; period != 0 && (i == 0 || i == 1) {
		b.begun[i]--
	}
}
