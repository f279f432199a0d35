package schedule

import (
	"math"
	"time"
)

// shares counts the deliveries in memory, and divides the slots and the bytes among the lanes. The
// deliveries of a lane with batches count as the attempts that they make.
type shares[S, V any] struct {
	config   *Config
	active   int            // deliveries that are being attempted
	reserved int            // deliveries with a reservation
	held     [standings]int // deliveries in memory: active, ready or reserved, by the standing of their lanes
	offered  [standings]int // deliveries that the fetch in progress may bring, by the standing of their lanes
	busy     int            // lanes with deliveries in memory
	bytes    int64          // of the bodies of deliveries that are in memory or not settled yet
	clock    time.Time      // the time of the latest call of Plan or Next
}

// waiting returns how many deliveries in memory are not being attempted.
func (s *shares[S, V]) waiting() int {
	return s.held[unproven] + s.held[proven] + s.held[doubtful] - s.active
}

// capacity returns how many more deliveries may be in memory, over all lanes.
func (s *shares[S, V]) capacity() int { return 2*s.config.Slots - s.active - s.waiting() }

// count records what l holds now. Call it after the counts of l have changed.
func (s *shares[S, V]) count(l *Lane[S, V]) {
	was, is := l.held, l.holds()
	switch {
	case was == 0 && is > 0:
		s.busy++
	case was > 0 && is == 0:
		s.busy--
	}
	s.held[l.standing] += is - was
	l.held = is
}

func (s *shares[S, V]) setStanding(l *Lane[S, V], to standing) {
	if l.standing == to {
		return
	}
	s.held[l.standing] -= l.held
	s.held[to] += l.held
	l.standing = to
}

// room returns how many more deliveries, or batches of them, l may have in memory, and its place if it has due
// deliveries. If that is inLater, the rate limit gives l room at the time again. An unproven or
// doubtful lane must also observe allowance.
//
// The division of the slots ensures that no number of hanging destinations takes all of them, not
// even in the seconds before their first attempts time out:
//
//   - A lane without an answer yet has firstSlots slots. Each answer adds one, as long as the lane
//     uses them.
//   - All unproven and doubtful lanes together get at most half of Config.Slots, the doubtful ones
//     at most a quarter. Such a lane has no more deliveries in memory than slots.
//   - While several lanes are busy, each gets at most its share of three quarters of the slots. A
//     lane that is being answered may have more: an eighth of the free slots in these three
//     quarters. Any other lane gets at most firstSlots of the last quarter, and fewer when that is
//     almost used up.
//   - Only a lane that is being answered may have twice as many deliveries in memory as slots. So
//     hanging destinations do not fill the memory.
func (s *shares[S, V]) room(l *Lane[S, V], now time.Time) (n int, to place, again time.Time) {
	held := l.holds()
	switch {
	case l.suspended():
		n = 1 - held
	case l.standing == proven:
		n = s.slotsOf(l)
		if s.isAnswered(l) {
			n *= 2 // so that a worker whose attempt ends finds the next delivery at once
		}
		n -= held
	case l.standing == unproven && s.suspects() >= s.config.Slots/4:
		n = 1 - held // with many such lanes, each gets one
	default:
		n = l.slots - held
	}
	if n > 0 {
		waiting := held - l.active
		tokens := l.rate.tokens(now) - waiting
		if tokens <= 0 && waiting < l.rate.burst {
			return 0, inLater, l.rate.when(waiting + 1)
		}
		n = min(n, tokens) // without tokens, there is no room until a waiting delivery is attempted
	}
	if n > 0 && l.largest > 0 {
		n = int(min(int64(n), max(s.part(s.config.Bytes)/l.batch.bytes(l.largest), 1)-int64(held)))
	}
	if n <= 0 {
		return 0, nowhere, again
	}
	return n, placeOf(l.standing), again
}

// short reports whether l needs a fetch soon: at most an eighth of its slots have a ready delivery.
// Only such a lane wakes the fetcher, which then fills all lanes that have room.
func (s *shares[S, V]) short(l *Lane[S, V]) bool {
	return l.suspended() || l.batch.attempts(l.ready.len()) <= s.slotsOf(l)/8
}

// allowance returns how many more deliveries the lanes of a standing may have in memory together.
func (s *shares[S, V]) allowance(of standing) int {
	all := max(s.config.Slots/2, 1) - s.suspects()
	switch of {
	case proven:
		return math.MaxInt
	case doubtful:
		return min(all, max(s.config.Slots/4, 1)-s.held[doubtful]-s.offered[doubtful])
	}
	return all
}

// suspects returns how many deliveries of unproven and doubtful lanes are in memory, or may be soon.
func (s *shares[S, V]) suspects() int {
	return s.held[unproven] + s.offered[unproven] + s.held[doubtful] + s.offered[doubtful]
}

// slotsOf returns how many attempts l may make at once.
func (s *shares[S, V]) slotsOf(l *Lane[S, V]) int {
	if s.busy <= 1 {
		return l.slots
	}
	slots := s.config.Slots
	n := int(s.part(int64(slots)))
	free := slots - s.active
	switch {
	case s.isAnswered(l):
		n = max(n, (free-slots/4)/8)
	case free <= slots/4:
		n = min(n, firstSlots, max(16*free/slots, 1))
	}
	return min(l.slots, n)
}

// isAnswered reports whether the destination of l has answered an attempt a moment ago: moving, at most.
func (s *shares[S, V]) isAnswered(l *Lane[S, V]) bool { return s.clock.Sub(l.answered) < moving }

// part returns the share of n that a busy lane gets, at least 1: all of n if no other lane is busy.
func (s *shares[S, V]) part(n int64) int64 {
	if s.busy <= 1 {
		return n
	}
	return max((n-n/4+int64(s.busy)-1)/int64(s.busy), 1)
}
