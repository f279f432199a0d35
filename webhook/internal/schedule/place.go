package schedule

import (
	"container/heap"
	"time"
)

// A place is a queue of lanes in the scheduler. The place of a lane says when the lane may fetch.
type place uint8

const (
	nowhere    place = iota // in no queue: no delivery waits, or the lane has no room until one of its attempts ends
	inDue                   // the lane may fetch now
	inUnproven              // the lane has no room because unproven and doubtful lanes have too many deliveries
	inDoubtful              // the lane has no room because doubtful lanes have too many deliveries
	inLater                 // the lane may fetch from Lane.at on
	allPlaces  = iota
)

// places keeps track of which lanes may fetch now, and from when on other lanes may.
type places struct {
	config *Config
	shares *shares
	full   bool // the latest Plan found no capacity

	queues [allPlaces]laneQueue // the lanes in each place but nowhere
	turn   uint64               // counts the moves of lanes to another place
}

// update moves l to its place, and other lanes that had no room and may have some now.
func (p *places) update(l *Lane, now time.Time) {
	p.move(l, now)
	if p.shares.freed {
		p.feed(now)
	}
}

// move moves l to the place where it belongs now. It calls Wake if l is short of deliveries and may
// fetch, or if the time of the next fetch has changed.
func (p *places) move(l *Lane, now time.Time) {
	_, to, at := p.wanted(l, now)
	was := l.place
	switch {
	case to != was:
		if was != nowhere {
			heap.Remove(&p.queues[was], l.pos)
		}
		p.turn++
		l.place, l.at, l.turn = to, at, p.turn
		if to != nowhere {
			heap.Push(&p.queues[to], l)
		}
	case !at.Equal(l.at):
		l.at = at
		heap.Fix(&p.queues[to], l.pos)
	case to != inDue:
		return
	}
	if to == inDue && !p.full && p.shares.short(l) || to == inLater && l.pos == 0 {
		p.config.Wake()
	}
}

// feed moves lanes that have room now out of inUnproven and inDoubtful: at most half as many as
// there are slots, because more cannot fetch at once. Others follow after the next fetch.
func (p *places) feed(now time.Time) {
	p.shares.freed = false
	for _, was := range []place{inUnproven, inDoubtful} {
		q := &p.queues[was]
		for n := max(p.config.Slots/2, 1); n > 0 && len(*q) > 0; n-- {
			l := (*q)[0]
			if p.move(l, now); l.place == was {
				break
			}
		}
	}
}

// refill calls Wake if the latest Plan found no capacity, and at least half of it is free again.
func (p *places) refill() {
	if p.full && p.shares.waiting() <= p.config.Slots/2 && p.shares.bytes <= p.config.Bytes/2 {
		p.full = false
		p.config.Wake()
	}
}

// wants says how many deliveries a lane may fetch now.
type wants struct {
	fresh, retries int
	lapsing        bool // fresh counts lapsed deliveries; see breaker
}

// limit reduces w to at most n deliveries. If both queues have due deliveries, each gets half, so
// that a flood of one kind does not hold up the other. If n is odd, the retries get the larger half
// if more is 1, and the smaller one if it is 0.
func (w *wants) limit(n, more int) {
	if w.retries > 0 && w.fresh > 0 {
		w.retries = min(w.retries, (n+more)/2)
	}
	w.retries = min(w.retries, n)
	w.fresh = min(w.fresh, n-w.retries)
}

const lapseChunk = 256 // lapsed deliveries that one fetch takes from a lane at most

// wanted returns how many deliveries l may fetch now, its place and, for inLater, its Lane.at.
func (p *places) wanted(l *Lane, now time.Time) (w wants, to place, at time.Time) {
	if l.paused || l.fetching {
		return w, nowhere, at
	}
	b := &l.breaker
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
	freshDue, retryDue := isDue(fresh, now), isDue(retry, now)
	switch {
	case isDue(lapse, now):
		return wants{fresh: lapseChunk, lapsing: true}, inDue, at
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

// A laneQueue is a container/heap of lanes, by Lane.at and then by when they came to the queue.
type laneQueue []*Lane

func (q laneQueue) Len() int { return len(q) }

func (q laneQueue) Less(i, j int) bool {
	if c := q[i].at.Compare(q[j].at); c != 0 {
		return c < 0
	}
	return q[i].turn < q[j].turn
}

func (q laneQueue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].pos, q[j].pos = i, j
}

func (q *laneQueue) Push(x any) {
	l := x.(*Lane)
	l.pos = len(*q)
	*q = append(*q, l)
}

func (q *laneQueue) Pop() any {
	old := *q
	n := len(old) - 1
	l := old[n]
	old[n] = nil
	*q = old[:n]
	return l
}
