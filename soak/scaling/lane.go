package main

import (
	"math/rand/v2"
	"time"
)

// The constants of the forwarder's scheduler, whose rules a lane follows. TestRules
// compares them with the scheduler's source.
const (
	firstSlots    = 4
	laneRest      = time.Second
	firstProbe    = time.Second
	lastProbe     = 30 * time.Second
	retrySpace    = time.Second
	openPoints    = 10
	timeoutPoints = 3
	firstWait     = time.Second
	longWait      = 10 * time.Minute
)

// A lane simulates one destination in one forwarder, delivery by delivery: its slots, its
// breaker, its rate and its retries. Times count from the start of the simulation.
type lane struct {
	limit    int           // the most attempts at once
	timeout  time.Duration // the longest attempt
	window   time.Duration // the retry window
	interval time.Duration // between attempts, if a rate is set; 0 is no rate
	burst    int           // attempts that the rate allows at once
	receiver receiver
	random   *rand.Rand

	fresh   []span        // fresh deliveries, in the order they are due
	head    time.Duration // when the first fresh delivery is due, if headed is set
	headed  bool
	waiting int           // deliveries in fresh
	retries agenda        // by due time
	active  agenda        // attempts, by the time they end
	slots   int           // attempts at once that the receiver's answers allow
	share   int           // slots that other lanes leave to this one; 0 is no limit
	credit  float64       // the fraction of a delivery that drain carries over
	full    time.Duration // when the rate's bucket is full again
	touched time.Duration // when the lane last did something

	open, trial  bool
	points       int
	probes       int
	since        time.Duration
	retry, probe time.Duration

	done, dead, attempts, failures int
	begun                          int           // first attempts
	waited                         time.Duration // time from due to first attempt, the sum for all

	// Of the deliveries that were due before the receiver recovered:
	old      int           // attempted, but neither done nor dead
	caughtUp time.Duration // when the last one had its first attempt
	settled  time.Duration // when the last one was done or dead

	told      time.Duration // arrivals are known up to this time
	recovered time.Duration // when the backlog was empty after the outage; 0 before that
}

// A receiver simulates the receiver to which a lane sends.
type receiver struct {
	latency  latency
	failures float64       // the share of attempts that fail while the receiver is healthy
	from, to time.Duration // begin and end of the outage
	hangs    bool          // during the outage: no answer, in place of a 503
}

// attempt returns the outcome of an attempt, and how long the attempt takes.
func (r *receiver) attempt(now, timeout time.Duration, random *rand.Rand) (pace, time.Duration) {
	down := now >= r.from && now < r.to
	if down && r.hangs {
		return timedOut, timeout
	}
	took := r.latency.sample(random)
	switch {
	case took >= timeout:
		return timedOut, timeout
	case down || r.failures > 0 && random.Float64() < r.failures:
		return failing, took
	}
	return answered, took
}

type pace uint8

const (
	answered pace = iota
	failing
	timedOut
)

// A delivery describes a delivery from its first attempt on. During an attempt, the field at is the
// end of the attempt. Between attempts, it is when the retry is due. Before its first attempt, a
// delivery is only counted, in a span.
type delivery struct {
	at      time.Duration
	expires time.Duration
	tries   int32
	pace    pace
	old     bool
}

// A span is n deliveries that arrive at random times between from and to.
type span struct {
	from, to time.Duration
	n        int
}

// The method arrive extends the last span to at most longSpan. If the span would become longer,
// arrive adds a new span instead.
const longSpan = time.Minute

func newLane(limit int, r receiver, random *rand.Rand) *lane {
	return &lane{limit: limit, slots: min(firstSlots, limit), timeout: 5 * time.Second, window: 4 * time.Hour, receiver: r, random: random}
}

// arrive adds n deliveries that arrive between the times from and to. The caller calls it in the
// order of these times.
func (l *lane) arrive(from, to time.Duration, n int) {
	if n == 0 {
		return
	}
	l.waiting += n
	if last := len(l.fresh) - 1; last > 0 && l.fresh[last].to == from && to-l.fresh[last].from <= longSpan {
		l.fresh[last].to = to
		l.fresh[last].n += n
		return
	}
	l.fresh = append(l.fresh, span{from, to, n})
}

// first returns when the first fresh delivery is due. The n deliveries of a span arrive at
// uniformly random times, and first draws the earliest of these. The other n-1 times are again
// uniform in the rest of the span.
func (l *lane) first() time.Duration {
	if !l.headed {
		s := &l.fresh[0]
		s.from += time.Duration(float64(s.to-s.from) * least(s.n, l.random))
		l.head, l.headed = s.from, true
	}
	return l.head
}

// pop removes the first fresh delivery.
func (l *lane) pop() {
	l.headed = false
	l.waiting--
	if l.fresh[0].n--; l.fresh[0].n == 0 {
		l.fresh = l.fresh[1:]
	}
}

// backlog is how many deliveries wait. It does not count deliveries that are being
// attempted.
func (l *lane) backlog() int { return l.waiting + len(l.retries) }

// advance simulates the lane until the time to. The argument budget bounds the attempts that
// advance begins. It returns how many it began. Before, the caller must call arrive for all
// arrivals until the time to.
func (l *lane) advance(to time.Duration, budget int) int {
	began := l.attempts
	for {
		at, ok := l.next()
		late := ok && l.attempts-began >= budget
		ok = ok && !late && at <= to
		switch ends := len(l.active) > 0 && l.active[0].at <= to; {
		case ends && (!ok || l.active[0].at <= at):
			l.end(l.active.pop())
		case ok:
			l.begin(at)
		default:
			if late {
				l.touched = to // attempts over the budget begin after this step
			}
			return l.attempts - began
		}
	}
}

// next returns when the next attempt may begin, if no running attempt ends before that time. It
// returns false if no attempt may begin at all.
func (l *lane) next() (time.Duration, bool) {
	switch {
	case l.backlog() == 0:
		return 0, false
	case l.open && len(l.active) > 0:
		return 0, false
	case len(l.active) >= l.allowed():
		return 0, false
	}
	at, _ := l.earliest()
	if l.interval > 0 {
		at = max(at, l.full-l.interval*time.Duration(l.burst-1))
	}
	return max(at, l.touched), true
}

// allowed is how many attempts the lane may make at once.
func (l *lane) allowed() int {
	if l.share > 0 {
		return min(l.slots, l.share)
	}
	return l.slots
}

// earliest returns the first time at which a waiting delivery may be attempted, or
// expires, and whether that delivery is fresh.
func (l *lane) earliest() (at time.Duration, fresh bool) {
	if len(l.retries) > 0 {
		at = l.retries[0].at
		if l.open {
			at = max(at, l.retry)
		}
	}
	if l.waiting == 0 {
		return at, false
	}
	first := l.first()
	if l.open {
		first = min(max(first, l.probe), max(first, l.since)+l.window)
	}
	if len(l.retries) == 0 || first < at || first == at && !l.open {
		return first, true
	}
	return at, false
}

// begin begins the attempt that next has found. If the retry window of the delivery is over, begin
// makes the delivery a dead letter instead.
func (l *lane) begin(now time.Duration) {
	_, fresh := l.earliest()
	due := l.head
	if len(l.active) == 0 && now-l.touched > laneRest {
		l.slots = min(l.slots, firstSlots)
	}
	l.touched = now
	var d delivery
	switch {
	case fresh && l.open && now >= max(l.since, due)+l.window:
		l.pop() // its retry window has passed without an attempt
		l.dead++
		l.settled = now
		return
	case fresh:
		l.pop()
		d.expires = now + l.window
		l.begun++
		l.waited += now - due
		if due < l.receiver.to {
			d.old = true
			l.old++
			l.caughtUp = now
		}
	default:
		d = l.retries.pop()
		if now > d.expires {
			l.bury(d, now)
			return
		}
	}
	if l.interval > 0 {
		l.full = max(l.full, now) + l.interval
	}
	l.trial = l.open
	l.attempts++
	took := time.Duration(0)
	d.pace, took = l.receiver.attempt(now, l.timeout, l.random)
	d.at = now + took
	l.active.push(d)
}

// settle counts a delivery that is done or dead.
func (l *lane) settle(d delivery, now time.Duration) {
	if d.old {
		l.old--
		l.settled = now
	}
}

func (l *lane) bury(d delivery, now time.Duration) {
	l.dead++
	l.settle(d, now)
}

// end ends the attempt of d.
func (l *lane) end(d delivery) {
	now := d.at
	l.touched = max(l.touched, now)
	if d.pace == answered {
		l.done++
		l.settle(d, now)
		l.answer(len(l.active) + 1)
		return
	}
	l.failures++
	d.tries++
	dies := now >= d.expires-l.timeout
	if dies {
		l.bury(d, now)
	} else {
		wait := time.Duration(l.random.Int64N(int64(longestWait(int(d.tries))) + 1))
		d.at = min(now+wait, d.expires-l.timeout)
		l.retries.push(d)
	}
	l.fail(d, now, dies)
}

// answer updates the lane after an answered attempt, by the rules of package schedule. The argument
// active is how many attempts were in flight, including the answered attempt.
func (l *lane) answer(active int) {
	if l.open {
		l.slots = 1
	}
	l.open, l.points = false, 0
	if 2*active >= l.slots {
		l.slots = min(l.slots+1, l.limit)
	}
	if l.slots >= min(firstSlots, l.limit) {
		l.probes = 0
	}
}

// fail updates the lane after a failed attempt of d, by the rules of package schedule. The argument
// dies says that d became a dead letter.
func (l *lane) fail(d delivery, now time.Duration, dies bool) {
	if d.pace == timedOut {
		l.slots = max(l.slots-(l.slots+7)/8, 1)
	}
	trial := l.trial
	l.trial = false
	switch {
	case l.open && !trial:
		return
	case !l.open:
		l.points++
		if d.pace == timedOut {
			l.points += timeoutPoints - 1
		}
		if l.points < openPoints {
			return
		}
		l.open, l.since = true, now
	}
	wait := min(firstProbe<<l.probes, lastProbe)
	l.probes = min(l.probes+1, 10)
	l.probe = now + wait/2 + time.Duration(l.random.Int64N(int64(wait/2)+1))
	switch l.retry = now + retrySpace; {
	case dies:
		l.retry = now
	case d.at < l.retry:
		l.retry = d.at
	}
}

// longestWait is the longest wait before retry n, as in package webhook.
func longestWait(n int) time.Duration {
	if n > 10 {
		return longWait
	}
	return min(firstWait<<max(n-1, 0), longWait)
}
