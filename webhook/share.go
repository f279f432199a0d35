package webhook

import "time"

// lapseChunk is how many deliveries are leased at once to see whether they have
// lapsed, after one has.
const lapseChunk = 256

// roomOf returns the room of l. If l has none before a known time, it returns that
// time as well.
//
// The slots are divided so that no number of destinations that hang takes them
// all, not even in the seconds before the first attempt of them times out:
//
//   - A lane that has not been answered yet has firstSlots of them; each answer
//     adds one, as long as they are used.
//   - All lanes that were not answered, or not of late, hold at most half of
//     MaxInFlight, and those that fail a quarter. They are leased no more than
//     they may attempt.
//   - While several lanes are busy, each holds at most its share of three
//     quarters. One that is being answered may have an eighth of what is free
//     of these, if that is more; one that is not gets no more than firstSlots
//     of the last quarter, and fewer towards its end.
//   - Beyond its slots a lane is leased as many as it was answered since the
//     last lease, so that what hangs fills no memory.
func (d *dispatcher) roomOf(l *lane, now time.Time) (n int, again time.Time) {
	held := l.active + l.ready.len()
	switch {
	case l.paused:
		return 0, time.Time{}
	case l.hold != "":
		if now.Before(l.parked) {
			return 0, l.parked
		}
		n = 1 - held
	case l.breaker.open && l.lapsing:
		n = lapseChunk
	case l.breaker.open:
		if held == 0 && now.Before(l.breaker.retry) {
			return 0, l.breaker.retry
		}
		n = 1 - held
	case l.standing == proven:
		// Up to as many ready as may be active, so that a worker that has
		// ended an attempt finds the next delivery at once.
		w := d.window(l)
		n = w + min(l.answers, w) - held
	default:
		n = l.slots - held
	}
	if n > 0 && l.rate.interval > 0 {
		tokens := l.rate.tokens(now) - l.ready.len()
		if tokens <= 0 {
			return 0, l.rate.when(min(l.ready.len()+1, l.rate.burst))
		}
		n = min(n, tokens)
	}
	if n > 0 && l.standing != proven {
		if most := d.allowance(l, held); most < n {
			n = most
			d.starved = true
		}
	}
	if n > 0 && l.largest > 0 {
		n = int(min(int64(n), max(d.shared(d.maxBytes)/l.largest, 1)-int64(held)))
	}
	return max(n, 0), time.Time{}
}

// allowance returns how many more deliveries l may hold by its standing, which is
// not proven.
func (d *dispatcher) allowance(l *lane, held int) int {
	failing := d.held[doubtful] + d.offered[doubtful]
	all := d.held[unproven] + d.offered[unproven] + failing
	n := max(d.maxActive/2, 1) - all
	switch {
	case l.standing == doubtful:
		n = min(n, max(d.maxActive/4, 1)-failing)
	case all >= d.maxActive/4:
		n = min(n, 1-held) // there are many such lanes
	}
	return n
}

// window returns how many attempts l may make at once.
func (d *dispatcher) window(l *lane) int {
	if d.busy <= 1 {
		return l.slots
	}
	n := int(d.shared(int64(d.maxActive)))
	free := d.maxActive - d.active
	switch {
	case d.clock.Sub(l.answered) < moving:
		n = max(n, (free-d.maxActive/4)/8)
	case free <= d.maxActive/4:
		n = min(n, firstSlots, max(16*free/d.maxActive, 1))
	}
	return min(l.slots, n)
}

// shared returns a busy lane's share of n: all of it if it is the only one,
// else at least 1.
func (d *dispatcher) shared(n int64) int64 {
	if d.busy <= 1 {
		return n
	}
	return max((n-n/4+int64(d.busy)-1)/int64(d.busy), 1)
}
