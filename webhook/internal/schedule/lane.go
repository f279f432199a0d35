package schedule

import "time"

// A Lane is the state of one destination. The scheduler's mutex guards all but ID and State.
type Lane[S, V any] struct {
	ID    string // of the destination
	State S      // what the forwarder keeps of the destination; the scheduler does not look at it

	fresh, retry head          // the two queues in the store
	ready        fifo[Item[V]] // deliveries that are claimed and wait for a slot
	active       int           // attempts in flight
	reserved     int           // deliveries with a reservation; see Scheduler.Reserve
	held         int           // what holds returned when shares counted it last
	fetching     bool          // the fetch in progress asks for deliveries of this lane
	batch        Batch         // zero: an attempt has one delivery
	arrived      int           // with batch.Wait: about how many fresh deliveries wait in the store, at least
	more         int           // 1 if the retries get the larger half of the next fetch, 0 if the fresh deliveries do

	limit    int // bound of active that the destination sets
	slots    int // bound of active that grows with answers, from 1 to limit
	standing standing
	queued   bool   // in one of the queues of runQueue
	order    uint64 // runQueue.order when the lane came to answers or suspects
	behind   bool   // the delivery that was claimed last was late; see backlog
	largest  int64  // about the size of the largest recent body, in bytes
	answered time.Time

	breaker breaker
	trial   bool // the attempt in flight began while the breaker was open
	rate    bucket

	// While hold is not "", the destination cannot be used, and hold says why. Nothing is fetched
	// before heldUntil, and then one delivery at a time, to find out whether the hold is over.
	hold       string
	heldUntil  time.Time
	holdsInRow int
	rechecks   uint64 // counts the calls of Recheck and RecheckAll
	paused     bool
	known      bool      // the destination could be used at the latest look-up
	looking    time.Time // until when l waits for a look-up without a slot, zero if there is none; see Leave

	// When the latest period began and ended in which hold or paused was set. If stopped is zero, the
	// period began before this process started.
	stopped, resumed time.Time

	touched       time.Time // when the lane was last used
	place         place
	at            time.Time   // in the place inLater: when the lane may fetch; zero in the other places
	pos           int         // in the place inLater: the index in its queue
	before, after *Lane[S, V] // in the other queues: the neighbours
	turn          uint64      // places.turn when the lane came to its place
}

// A head says when the first delivery of a queue in the store is due, zero if it is empty.
type head struct {
	due   time.Time
	noted time.Time // the earliest time that was passed to note since the fetch in progress began
}

// isDue reports whether a delivery that is due at t is due now. A zero t means no delivery.
func isDue(t, now time.Time) bool { return !t.IsZero() && !t.After(now) }

// note records that a delivery of the queue is due at t, unless t is zero.
func (h *head) note(t time.Time) {
	h.due, h.noted = earlier(h.due, t), earlier(h.noted, t)
}

// earlier returns the earlier of two times. If one of them is zero, it returns the other.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// suspended reports whether l makes only one attempt at a time, to find out whether it is usable.
func (l *Lane[S, V]) suspended() bool { return l.hold != "" || l.breaker.open }

// mayStart reports whether a delivery of l may be attempted without a fetch.
func (l *Lane[S, V]) mayStart() bool { return !l.paused && !l.suspended() && l.looking.IsZero() }

// touch records that l is used now. After laneRest without use, it has at most firstSlots again.
func (l *Lane[S, V]) touch(now time.Time) {
	if l.active == 0 && now.Sub(l.touched) > laneRest {
		l.slots = min(l.slots, firstSlots)
	}
	l.touched = now
}

// isIdle reports whether l has no deliveries, and had none for idleLane.
func (l *Lane[S, V]) isIdle(now time.Time) bool {
	waits := !l.fresh.due.IsZero() || !l.retry.due.IsZero() || l.fetching || !l.looking.IsZero()
	return !waits && l.holds() == 0 && now.Sub(l.touched) >= idleLane && !l.rate.full.After(now)
}

// holds returns how many attempts the deliveries of l in memory make: those in flight, and those of
// the ready and the reserved ones.
func (l *Lane[S, V]) holds() int { return l.active + l.batch.attempts(l.ready.len()+l.reserved) }

// Limits are the limits of one destination.
type Limits struct {
	Slots    int           // bound of the concurrent attempts
	Interval time.Duration // time between attempts; zero: no rate limit
	Burst    int           // attempts that may be made at once after an idle time
	Window   time.Duration // the retry window; zero: Config.Window
	Batch    Batch         // zero: an attempt has one delivery
}

const (
	firstSlots = 4                      // slots of a lane before its first answer
	laneRest   = time.Second            // how long an idle lane keeps slots beyond firstSlots
	moving     = 100 * time.Millisecond // how long a lane counts as being answered after an answer
	idleLane   = time.Minute            // how long an idle lane without deliveries is kept, at least
)

// A standing says what is known about a destination. The division of slots depends on it.
type standing uint8

const (
	unproven  standing = iota // nothing yet
	proven                    // the destination answers
	doubtful                  // it no longer answers, or cannot be used
	standings = iota
)

// answer records that an attempt, which still counts as active, was answered.
//
// The lane gets another slot if at least half of its slots are in use. So the slots of a busy lane
// double with each round of answers, up to its limit. A lane with less work has fewer slots, so
// fewer of its attempts hang when its destination begins to hang. (TCP's congestion window does the
// same; see RFC 5681 and RFC 7661.)
func (l *Lane[S, V]) answer(now time.Time) {
	if l.breaker.answer() {
		l.slots = 1
	}
	if 2*l.active >= l.slots {
		l.slots = min(l.slots+1, l.limit)
	}
	l.answered = now
	if l.slots >= min(firstSlots, l.limit) {
		l.breaker.probes = 0
	}
}

// stop records that the destination cannot be used from now on, resume that it can be used again.
// Call stop before setting hold or paused, resume after clearing them.
func (l *Lane[S, V]) stop(now time.Time) {
	if l.hold != "" || l.paused {
		return
	}
	l.stopped = now
	if !l.known && l.resumed.IsZero() {
		l.stopped = time.Time{}
	}
}

func (l *Lane[S, V]) resume(now time.Time) {
	if l.hold == "" && !l.paused {
		l.resumed = now
	}
}

// nextAttempt returns the earliest time at which l may make its next attempt with its breaker open: zero while an attempt is in
// flight, or if no delivery waits.
func (l *Lane[S, V]) nextAttempt() time.Time {
	if l.active > 0 {
		return time.Time{}
	}
	return earlier(notBefore(l.fresh.due, l.breaker.probe), notBefore(l.retry.due, l.breaker.retry))
}
