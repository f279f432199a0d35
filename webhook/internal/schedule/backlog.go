package schedule

import "time"

// A backlog keeps deliveries that have waited from taking the processors from those that
// have just come. A receiver that answers at once makes a backlog the work of processors
// alone: with many of its attempts under way each goroutine waits behind dozens of them,
// though a few would drain it about as fast.
//
// So while fresh deliveries come, lanes that are behind begin at most backlogAttempts for
// each processor at a time, all together. An attempt counts for a millisecond at most.
// What takes longer waits for its receiver, which takes no processor, so neither distance
// nor a lane that hangs uses the bound up.
type backlog struct {
	bound int

	lane  *Lane     // the last lane that had a delivery which had just come
	until time.Time // backlogFor after that; then it no longer counts

	period int64  // the latest, in backlogPeriods since 1970
	begun  [2]int // attempts that began in period, and in the one before, and have not ended
}

const (
	// backlogAttempts is how many attempts of backlogs may be in their first millisecond,
	// for each processor.
	backlogAttempts = 2
	// lateAfter is how long after it was due a delivery that is claimed counts as part of
	// a backlog, and its lane as behind.
	lateAfter = 100 * time.Millisecond
	// backlogFor is how long the bound holds after a delivery has just come.
	backlogFor = time.Second
	// backlogPeriod is the resolution in time: an attempt counts for one to two periods.
	backlogPeriod = 500 * time.Microsecond
)

// note is told that a delivery of l, due at a time, was claimed now.
func (b *backlog) note(l *Lane, due, now time.Time) {
	l.behind = now.Sub(due) > lateAfter
	switch {
	case l.behind && b.lane == l:
		b.lane = nil // its own backlog does not give way for its sake
	case !l.behind && l.standing != doubtful:
		b.lane, b.until = l, now.Add(backlogFor)
	}
}

// on reports whether deliveries have just come, so that the bound holds.
func (b *backlog) on(now time.Time) bool { return b.lane != nil && now.Before(b.until) }

// free reports whether an attempt for a lane that is behind may begin.
func (b *backlog) free(now time.Time) bool {
	if !b.on(now) {
		return true
	}
	b.advance(now)
	return b.begun[0]+b.begun[1] < b.bound
}

// advance goes to the period of now, and forgets the attempts that began too long ago to
// count.
func (b *backlog) advance(now time.Time) {
	switch p := now.UnixNano() / int64(backlogPeriod); {
	case p == b.period:
	case p == b.period+1:
		b.begun[1], b.begun[0] = b.begun[0], 0
		b.period = p
	default:
		b.begun = [2]int{}
		b.period = p
	}
}

// begin counts an attempt for a lane that is behind. It returns the argument for end.
func (b *backlog) begin(now time.Time) int64 {
	b.advance(now)
	b.begun[0]++
	return b.period
}

// end is told that the attempt has ended for which begin returned period, 0 for one that
// begin did not count.
func (b *backlog) end(period int64) {
	if i := b.period - period; period != 0 && (i == 0 || i == 1) {
		b.begun[i]--
	}
}
