package schedule

import "time"

// A Lane is the queue of one destination. The scheduler's mutex guards it, but for ID and
// Data.
type Lane struct {
	// ID is the destination's.
	ID string
	// Data is what Config.NewData has returned.
	Data any

	fresh, retry head       // what waits in the store
	ready        fifo[Item] // claimed, and waiting for a slot
	active       int        // being attempted
	reserved     int        // on their way into the store
	bytes        int64      // of the bodies of all three
	fetching     bool       // a fetch is under way
	lapsing      bool       // it is for deliveries that have lapsed

	limit    int // of active, as the destination says
	slots    int // of active, as its answers allow: 1 to limit
	standing standing
	queued   bool  // in the run queue, or giving way
	behind   bool  // what was claimed last has waited; see backlog
	largest  int64 // about the size of its largest recent body
	answers  int   // since the last fetch
	answered time.Time

	breaker breaker
	trial   bool // the active delivery was begun with the breaker open
	rate    bucket

	// While hold is not "", nothing is fetched before heldUntil, because the destination
	// cannot be used. From then on, one delivery at a time finds out whether that is
	// over.
	hold       string
	heldUntil  time.Time
	holdsInRow int
	paused     bool
	known      bool // it could be used when it was last looked up

	// The latest time in which the destination could not be used, by hold or paused. A
	// zero stopped is before this process began.
	stopped, resumed time.Time

	touched time.Time // when it was last used
	links   [2]links  // in touched; in due or starved
	place   place
	at      time.Time // in later
	pos     int       // in later
}

// A head says when the first delivery of a queue in the store is due; zero if there is
// none.
type head struct {
	due   time.Time
	noted time.Time // what was noted since the fetch under way began
}

func (h *head) isDue(now time.Time) bool { return !h.due.IsZero() && !h.due.After(now) }

// note notes that a delivery is due at t.
func (h *head) note(t time.Time) {
	h.due, h.noted = earlier(h.due, t), earlier(h.noted, t)
}

// fetched notes that a fetch has left nothing that is due before next. It may not have
// seen what was stored while it went on.
func (h *head) fetched(next time.Time) { h.due = earlier(next, h.noted) }

// earlier returns the earlier of two times that are not zero.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func (l *Lane) queue(retries bool) *head {
	if retries {
		return &l.retry
	}
	return &l.fresh
}

// holds returns how many deliveries are held in memory.
func (l *Lane) holds() int { return l.active + l.ready.len() + l.reserved }

// Limits are those of one destination.
type Limits struct {
	// Slots bounds its attempts at once.
	Slots int
	// Interval is the time between attempts, zero if there is no limit, and Burst how
	// many may be made at once after a rest.
	Interval time.Duration
	Burst    int
	// Window is the retry window, zero for that of the Config.
	Window time.Duration
}

func (l *Lane) setLimits(c Limits, now time.Time) {
	l.limit = c.Slots
	l.breaker.window = c.Window
	l.slots = min(l.slots, l.limit)
	l.rate.set(c.Interval, c.Burst, now)
}

const (
	// firstSlots is how many attempts a lane makes at once before any was answered, and
	// after a rest.
	firstSlots = 4
	// laneRest is how long a lane without attempts keeps its slots.
	laneRest = time.Second
	// moving is how long after an answer a lane counts as one that moves.
	moving = 100 * time.Millisecond
	// idleLane is how long a lane is kept when nothing waits for it.
	idleLane = time.Minute
)

// A standing says what is known of a destination, for the division of slots between
// lanes.
type standing uint8

const (
	unproven  standing = iota // nothing yet
	proven                    // it answers
	doubtful                  // it no longer answers, or cannot be used
	standings = iota
)

// answer notes that an attempt was answered, which is still counted as active. It gives
// the lane another slot if at least half of its slots are in use, so that a busy lane has
// twice as many after each round of answers, up to its limit. A lane does not grow beyond
// what it uses, so that few of its attempts hang when the destination begins to (as TCP's
// congestion window, RFC 5681 and RFC 7661).
func (l *Lane) answer(now time.Time) {
	if l.breaker.answer() {
		l.slots = 1
	}
	if 2*l.active >= l.slots {
		l.slots = min(l.slots+1, l.limit)
	}
	l.answers++
	l.answered = now
	if l.slots >= min(firstSlots, l.limit) {
		l.breaker.forgive()
	}
}

// fail notes that an attempt failed. One that timed out costs an eighth of the slots, as it
// held its own for nothing: a destination that hangs soon has a single one, and one that
// is slow now and then keeps most. fail reports whether it has opened the breaker.
func (l *Lane) fail(f Failure, now time.Time, jitter func(time.Duration) time.Duration) (opened bool) {
	if f.TimedOut {
		l.slots = max(l.slots-(l.slots+7)/8, 1)
	}
	trial := l.trial
	l.trial = false
	return l.breaker.fail(f, trial, now, jitter)
}

// stop notes that the destination cannot be used from now on, and resume that it can. stop
// is called before hold or paused is set, resume after it is cleared.
func (l *Lane) stop(now time.Time) {
	if l.hold != "" || l.paused {
		return
	}
	l.stopped = now
	if !l.known && l.resumed.IsZero() {
		l.stopped = time.Time{}
	}
}

func (l *Lane) resume(now time.Time) {
	if l.hold == "" && !l.paused {
		l.resumed = now
	}
}
