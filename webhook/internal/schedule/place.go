package schedule

import (
	"container/heap"
	"time"
)

// A place is a queue of lanes in the scheduler. The place of a lane says when the lane may fetch.
type place uint8

const (
	nowhere    place = iota // in no queue: no delivery waits, or the lane has no room until one of its attempts ends
	inLater                 // the lane may fetch from Lane.at on
	inUnproven              // the lane may fetch when unproven lanes may; see shares.allowance
	inProven                // the lane may fetch now
	inDoubtful              // the lane may fetch when doubtful lanes may
)

// placeOf returns the place of lanes of a standing that have due deliveries, and room for them.
func placeOf(s standing) place { return inUnproven + place(s) }

// places keeps track of which lanes may fetch now, and from when on other lanes may. Its methods
// look at a bounded number of lanes, however many there are.
type places[S, V any] struct {
	config *Config
	shares *shares[S, V]
	full   bool // the latest Plan found no capacity

	draining bool // see Scheduler.Drain

	due   [standings]line[S, V] // the lanes in inUnproven, inProven and inDoubtful
	later laneQueue[S, V]       // the lanes in inLater
	turn  uint64                // counts the moves of lanes to another place
	looks uint64                // counts the calls of wanted; tests bound them
}

// update moves l to the place where it belongs now. It calls Wake if lanes may fetch that are short
// of deliveries, or if the time of the next fetch has changed.
func (p *places[S, V]) update(l *Lane[S, V], now time.Time) {
	_, to, at := p.wanted(l, now)
	moves := to != l.place || !at.Equal(l.at)
	if moves {
		p.leave(l)
		p.turn++
		l.place, l.at, l.turn = to, at, p.turn
		p.enter(l)
	}
	switch {
	case moves && to == inLater && l.pos == 0:
	case !p.full && (to == inProven && p.shares.short(l) || p.open(unproven) > 0 || p.open(doubtful) > 0):
	default:
		return
	}
	p.config.Wake()
}

func (p *places[S, V]) leave(l *Lane[S, V]) {
	switch l.place {
	case nowhere:
	case inLater:
		heap.Remove(&p.later, l.pos)
	default:
		p.due[l.place-inUnproven].remove(l)
	}
}

func (p *places[S, V]) enter(l *Lane[S, V]) {
	switch l.place {
	case nowhere:
	case inLater:
		heap.Push(&p.later, l)
	default:
		p.due[l.place-inUnproven].push(l)
	}
}

// open returns how many lanes of a standing may fetch now.
func (p *places[S, V]) open(s standing) int {
	if p.due[s].n == 0 {
		return 0
	}
	return min(p.due[s].n, max(p.shares.allowance(s), 0))
}

// next returns the lane that may fetch now and has waited the longest, nil if there is none, and how
// many lanes may fetch now, at most.
func (p *places[S, V]) next() (l *Lane[S, V], n int) {
	for s := range p.due {
		if open := p.open(standing(s)); open > 0 {
			n += open
			if first := p.due[s].first; l == nil || first.turn < l.turn {
				l = first
			}
		}
	}
	return l, n
}

// refill calls Wake if the latest Plan found no capacity, and at least half of it is free again.
func (p *places[S, V]) refill() {
	if p.full && p.shares.waiting() <= p.config.Slots/2 && p.shares.bytes <= p.config.Bytes/2 {
		p.full = false
		p.config.Wake()
	}
}

// wants says how many deliveries a lane may fetch now, or batches of them.
type wants struct {
	fresh, retries int
	lapsing        bool // fresh counts lapsed deliveries; see breaker
}

// limit reduces w to at most n deliveries. If both queues have due deliveries, the retries get at
// most half of n, so that a flood of one kind does not hold up the other. An odd n has one delivery
// left over: it goes to the retries if more is 1, and to the fresh deliveries if more is 0.
func (w *wants) limit(n, more int) {
	if w.retries > 0 && w.fresh > 0 {
		w.retries = min(w.retries, (n+more)/2)
	}
	w.retries = min(w.retries, n)
	w.fresh = min(w.fresh, n-w.retries)
}

const lapseChunk = 256 // lapsed deliveries that one fetch takes from a lane at most

// wanted returns how many deliveries l may fetch now, its place and, for inLater, its Lane.at.
func (p *places[S, V]) wanted(l *Lane[S, V], now time.Time) (w wants, to place, at time.Time) {
	p.looks++
	if l.paused || l.fetching {
		return w, nowhere, at
	}
	b := &l.breaker
	gathers := l.gathers(now)
	if p.draining && !gathers {
		return w, nowhere, at
	}
	fresh, retry, lapse := l.fresh.due, l.retry.due, time.Time{} // when the first delivery of each kind may be fetched
	switch {
	case l.hold != "":
		l.heldUntil = earlier(l.heldUntil, now.Add(maxHold)) // the clock may have been set back
		fresh, retry = notBefore(fresh, l.heldUntil), notBefore(retry, l.heldUntil)
	case b.open:
		b.probe, b.retry = earlier(b.probe, now.Add(lastProbe)), earlier(b.retry, now.Add(lastProbe)) // likewise
		if !fresh.IsZero() {
			lapse = b.lapses(fresh, p.config.Window)
		}
		if b.asked == 0 {
			fresh, retry = notBefore(fresh, b.probe), notBefore(retry, b.retry)
		}
	}
	if !l.looking.IsZero() {
		l.looking = earlier(l.looking, now.Add(maxHold)) // likewise
		fresh, retry = notBefore(fresh, l.looking), notBefore(retry, l.looking)
	}
	switch {
	case p.draining:
		retry = time.Time{}
	case gathers && l.arrived < l.batch.Events:
		fresh = notBefore(fresh, l.fresh.due.Add(l.batch.Wait))
	}
	freshDue, retryDue := isDue(fresh, now), isDue(retry, now)
	switch {
	case isDue(lapse, now):
		return wants{fresh: lapseChunk, lapsing: true}, inProven, at
	case l.hold == "" && b.open && l.holds() > 0:
		return w, nowhere, at // wait for the result of the attempt in flight
	case !freshDue && !retryDue:
		if at = earlier(lapse, earlier(fresh, retry)); at.IsZero() {
			return w, nowhere, at
		}
		return w, inLater, at
	}
	n, to, at := p.shares.room(l, now)
	if retryDue {
		w.retries = n
	}
	if freshDue {
		w.fresh = n
		switch {
		case p.draining:
			w.fresh = 1
		case gathers:
			w.fresh = min(n, l.arrived/l.batch.Events) // full batches
		}
	}
	w.limit(n, l.more)
	return w, to, at
}

// notBefore returns the later of t and floor. It returns a zero t as it is.
func notBefore(t, floor time.Time) time.Time {
	if !t.IsZero() && t.Before(floor) {
		return floor
	}
	return t
}

// A laneQueue is a container/heap of lanes, by Lane.at.
type laneQueue[S, V any] []*Lane[S, V]

func (q laneQueue[S, V]) Len() int           { return len(q) }
func (q laneQueue[S, V]) Less(i, j int) bool { return q[i].at.Before(q[j].at) }

func (q laneQueue[S, V]) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].pos, q[j].pos = i, j
}

func (q *laneQueue[S, V]) Push(x any) {
	l := x.(*Lane[S, V])
	l.pos = len(*q)
	*q = append(*q, l)
}

func (q *laneQueue[S, V]) Pop() any {
	old := *q
	n := len(old) - 1
	l := old[n]
	old[n] = nil
	*q = old[:n]
	return l
}
