package schedule

import "time"

// A Lane is the scheduler's state of one destination. The scheduler's mutex guards it, except ID and
// Data.
type Lane struct {
	// ID is the destination's.
	ID string
	// Data is what Config.NewData has returned.
	Data any

	fresh, retry head       // the two queues in the store
	ready        fifo[Item] // deliveries that are claimed and wait for a slot
	active       int        // deliveries that are being attempted
	reserved     int        // deliveries on their way into the store
	bytes        int64      // of the bodies of all three
	fetching     bool       // the fetch in progress may bring deliveries
	lapsing      bool       // it fetches deliveries that have lapsed

	limit    int // of active, as the destination says
	slots    int // of active, as its answers allow: 1 to limit
	standing standing
	queued   bool  // in the run queue, or giving way
	behind   bool  // the delivery that was claimed last had waited; see backlog
	largest  int64 // about the size of the largest recent body
	answers  int   // since the last fetch
	answered time.Time

	breaker breaker
	trial   bool // the attempt in flight began with the breaker open
	rate    bucket

	// While hold is not "", the destination cannot be used. Nothing is fetched before
	// heldUntil. From then on one delivery at a time finds out whether the hold is over.
	hold       string
	heldUntil  time.Time
	holdsInRow int
	paused     bool
	known      bool // the destination could be used at the latest look-up

	// These are the begin and end of the latest time in which the destination could not be
	// used, because of hold or paused. A zero stopped is before this process began.
	stopped, resumed time.Time

	touched time.Time // when it was last used
	links   [2]links  // in lanes.touched; in places.lists
	place   place
	at      time.Time // the key in places.later
	pos     int       // the index in places.later
}

// A head says when the first delivery of a queue in the store is due. It is zero if the queue is
// empty.
type head struct {
	due   time.Time
	noted time.Time // the earliest due that was noted since the fetch in progress began
}

func (h *head) isDue(now time.Time) bool { return !h.due.IsZero() && !h.due.After(now) }

// note notes that a delivery is due at t. A zero time is ignored.
func (h *head) note(t time.Time) {
	h.due, h.noted = earlier(h.due, t), earlier(h.noted, t)
}

// fetched notes that a fetch has left nothing in the queue that is due before next. It may have missed
// deliveries that were stored while it was in progress.
func (h *head) fetched(next time.Time) { h.due = earlier(next, h.noted) }

// earlier returns the earlier of two times. The zero time means none.
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

// holds returns how many deliveries of l are in memory.
func (l *Lane) holds() int { return l.active + l.ready.len() + l.reserved }

// Limits are those of one destination.
type Limits struct {
	// Slots bounds the attempts at once.
	Slots int
	// Interval is the time between attempts, zero if there is no limit. Burst is how many
	// attempts may be made at once after an idle time.
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
	// firstSlots is how many attempts a lane makes at once before any was answered, and after
	// an idle time.
	firstSlots = 4
	// laneRest is how long an idle lane keeps its slots.
	laneRest = time.Second
	// moving is how long after an answer a lane counts as being answered.
	moving = 100 * time.Millisecond
	// idleLane is how long a lane is kept when no delivery waits for it.
	idleLane = time.Minute
)

// A standing says what is known of a destination. Slots are divided by it.
type standing uint8

const (
	unproven  standing = iota // nothing yet
	proven                    // the destination answers
	doubtful                  // it no longer answers, or cannot be used
	standings = iota
)

// answer notes that an attempt was answered, which still counts as active. It gives the lane another
// slot if at least half of its slots are in use. So a busy lane has twice as many after each round of
// answers, up to its limit. A lane does not grow beyond what it uses, so that few of its attempts hang
// when the destination begins to hang (as TCP's congestion window does, RFC 5681 and RFC 7661).
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

// fail notes that an attempt failed, and reports whether that opens the breaker. A timeout costs the
// lane an eighth of its slots. So a destination that hangs soon has a single slot, and one that is slow
// now and then keeps most.
func (l *Lane) fail(f Failure, now time.Time, jitter func(time.Duration) time.Duration) (opened bool) {
	if f.TimedOut {
		l.slots = max(l.slots-(l.slots+7)/8, 1)
	}
	trial := l.trial
	l.trial = false
	return l.breaker.fail(f, trial, now, jitter)
}

// stop notes that the destination cannot be used from now on, and resume that it can. Callers call stop
// before they set hold or paused, and resume after they have cleared it.
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
