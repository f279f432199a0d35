package schedule

import "time"

// A backlog keeps deliveries that have waited from taking the processors from deliveries that have
// just come. If receivers answer at once, draining a backlog takes nothing but processor time. With
// many attempts in flight every goroutine then waits behind dozens of others, though a few attempts at
// a time would drain the backlog about as fast.
//
// So while fresh deliveries come, all lanes that are behind begin at most backlogAttempts for each
// processor at a time. An attempt counts for a millisecond at most. A longer one waits for its
// receiver and takes no processor. So neither distant receivers nor hanging ones use up the bound.
type backlog struct {
	bound int

	lane  *Lane     // the latest lane with a delivery that had just come
	until time.Time // when lane no longer counts

	period int64  // the current one, in backlogPeriods since 1970
	begun  [2]int // attempts in flight that began in period, and in the one before
}

const (
	// backlogAttempts is how many attempts of backlogs may be in their first millisecond, for
	// each processor.
	backlogAttempts = 2
	// lateAfter is the delay after which a claimed delivery belongs to a backlog, and its lane
	// is behind.
	lateAfter = 100 * time.Millisecond
	// backlogFor is how long the bound holds after a delivery has just come.
	backlogFor = time.Second
	// backlogPeriod is the resolution in time. An attempt counts for one to two periods.
	backlogPeriod = 500 * time.Microsecond
)

// note notes that a delivery of l was claimed.
func (b *backlog) note(l *Lane, due, now time.Time) {
	l.behind = now.Sub(due) > lateAfter
	switch {
	case l.behind && b.lane == l:
		b.lane = nil // l does not give way to itself
	case !l.behind && l.standing != doubtful:
		b.lane, b.until = l, now.Add(backlogFor)
	}
}

// on reports whether deliveries have just come, so that the bound holds.
func (b *backlog) on(now time.Time) bool { return b.lane != nil && now.Before(b.until) }

// free reports whether a lane that is behind may begin an attempt.
func (b *backlog) free(now time.Time) bool {
	if !b.on(now) {
		return true
	}
	b.advance(now)
	return b.begun[0]+b.begun[1] < b.bound
}

// advance goes on to the period of now, and forgets the attempts that began too long ago to count.
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

// begin counts an attempt of a lane that is behind. It returns the argument for end.
func (b *backlog) begin(now time.Time) int64 {
	b.advance(now)
	b.begun[0]++
	return b.period
}

// end notes the end of the attempt for which begin returned period, or 0 if begin did not count it.
func (b *backlog) end(period int64) {
	if i := b.period - period; period != 0 && (i == 0 || i == 1) {
		b.begun[i]--
	}
}
