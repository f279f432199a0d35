package webhook

import (
	"sync/atomic"
	"time"
)

// A lane holds the leased deliveries of one destination. The dispatcher's
// mutex guards it, but for target and the logs' state.
type lane struct {
	id       string
	ready    fifo[leased] // waiting for a worker
	active   int          // being attempted
	limit    int          // of active, as the destination says
	slots    int          // of active, as its answers allow: 1 to limit
	standing standing
	queued   bool  // in the dispatcher's run queue, or braked
	behind   bool  // what was leased last has waited; see brake
	given    int   // what is left of the room of the latest lease
	more     bool  // the store may have more than there was room for
	largest  int64 // about the size of its largest recent body
	answers  int   // since the last call of room
	answered time.Time

	breaker breaker
	trial   bool // the active delivery was begun with the breaker open
	lapsing bool // something has lapsed in the latest lease
	rate    bucket

	// While hold is not "", nothing is leased before parked, because the
	// destination cannot be used. From then on, one delivery at a time finds out
	// whether that is over.
	hold   Hold
	parked time.Time
	parks  int // in a row
	paused bool

	// The latest time in which the destination could not be used, by hold or
	// paused. A zero stopped is before this process began.
	stopped, resumed time.Time

	touched    time.Time // when the store last had something due for it
	prev, next *lane     // in dispatcher.touched

	target     atomic.Pointer[compiled]
	account    atomic.Pointer[account]
	stragglers atomic.Int32 // deliveries with requests left on their way
	failures   logState
	deaths     logState
}

// A leased delivery is to be settled before until.
type leased struct {
	*Delivery
	until time.Time
	size  int64 // of its body
}

// compiled is a target with the Destination it was made of.
type compiled struct {
	source *Destination
	target *target
}

const (
	// firstSlots is how many attempts a lane makes at once before any was
	// answered, and after a pause.
	firstSlots = 4
	// lanePause is how long a lane without attempts keeps its slots.
	lanePause = time.Second
	// moving is how long after an answer a lane counts as one that moves.
	moving = 100 * time.Millisecond
)

// A standing says what is known of a destination, for the division of slots
// between lanes.
type standing uint8

const (
	unproven  standing = iota // nothing yet
	proven                    // it answers
	doubtful                  // it no longer answers, or cannot be used
	standings = iota
)

// A pace is what a worker's turn tells about the destination.
type pace uint8

const (
	noAttempt pace = iota // nothing: there was no attempt
	answered              // the destination answered, whatever it thinks of the delivery
	failing               // it failed, as it would have with another delivery
	timedOut              // it failed, and held its slot for as long as an attempt can
)

// paceOf returns what the results of an attempt that did not succeed tell about the
// destination.
func paceOf(results []result) pace {
	p := answered
	for i := range results {
		switch r := &results[i]; {
		case r.outcome != retryable:
		case r.attempt.Reason == ReasonTimeout:
			return timedOut
		default:
			p = failing
		}
	}
	return p
}

// answer notes that an attempt was answered. It gives the lane another slot if at
// least half of its slots are in use, so that a busy lane has twice as many after
// each round of answers, up to its limit. A lane does not grow beyond what it uses,
// so that few of its attempts hang when the destination begins to (as TCP's
// congestion window, RFC 5681 and RFC 7661). active includes the attempt that was
// answered.
func (l *lane) answer(active int, now time.Time) {
	if l.breaker.answer() {
		l.slots = 1
	}
	if 2*active >= l.slots {
		l.slots = min(l.slots+1, l.limit)
	}
	l.answers++
	l.answered = now
	if l.slots >= min(firstSlots, l.limit) {
		l.breaker.forgive()
	}
}

// fail notes that an attempt failed. One that timed out costs an eighth of the
// slots, as it held its own for nothing: a destination that hangs soon has a single
// one, and one that is slow now and then keeps most. fail reports whether it has
// opened the breaker.
func (l *lane) fail(p pace, verdict *Settlement, now time.Time) (opened bool) {
	if p == timedOut {
		l.slots = max(l.slots-(l.slots+7)/8, 1)
	}
	trial := l.trial
	l.trial = false
	return l.breaker.fail(p, trial, verdict, now)
}

// outlasted reports whether a window that ended at expires ended while the
// destination could not be used.
func (l *lane) outlasted(expires time.Time) bool {
	return expires.Before(l.resumed) && (l.stopped.IsZero() || expires.After(l.stopped))
}

// stop notes that the destination cannot be used from now on, and resume that it
// can. stop is called before hold or paused is set, resume after it is cleared.
func (l *lane) stop(now time.Time) {
	if l.hold != "" || l.paused {
		return
	}
	l.stopped = now
	if l.target.Load() == nil && l.resumed.IsZero() {
		l.stopped = time.Time{}
	}
}

func (l *lane) resume(now time.Time) {
	if l.hold == "" && !l.paused {
		l.resumed = now
	}
}
