package schedule

import (
	"container/heap"
	"time"
)

// A place is one of the queues of lanes in the scheduler. It decides when a lane may fetch.
type place uint8

const (
	nowhere    place = iota // nothing waits, or the lane has no room until an attempt ends
	inDue                   // the lane may fetch now
	inUnproven              // it has no room because lanes that were not answered hold too much
	inDoubtful              // it has no room because lanes that fail hold too much
	inLater                 // it may fetch from a time on
)

// places knows which lanes may fetch now, and when the others may.
type places struct {
	shares *shares
	window time.Duration // Config.Window
	wake   func()        // Config.Wake
	full   bool          // the latest Plan had no capacity

	lists [inLater]list // the lanes that are inDue, inUnproven and inDoubtful
	later laneHeap      // the lanes that are inLater
}

// update moves l to where it belongs, and then those lanes that have room now.
func (p *places) update(l *Lane, now time.Time) {
	p.move(l, now)
	if p.shares.freed {
		p.feed(now)
	}
}

// move moves l to where it belongs.
func (p *places) move(l *Lane, now time.Time) {
	to, at := p.placeOf(l, now)
	was := l.place
	switch {
	case to == inLater && was == inLater:
		if at.Equal(l.at) {
			return
		}
		l.at = at
		heap.Fix(&p.later, l.pos)
	case to == was:
		return
	default:
		if was == inLater {
			heap.Remove(&p.later, l.pos)
		} else if was != nowhere {
			p.lists[was].remove(l)
		}
		l.place, l.at = to, at
		if to == inLater {
			heap.Push(&p.later, l)
		} else if to != nowhere {
			p.lists[to].push(l)
		}
	}
	if to == inDue && !p.full || to == inLater && l.pos == 0 {
		p.wake()
	}
}

// placeOf returns the place that l belongs to, and for inLater from when on it may fetch.
func (p *places) placeOf(l *Lane, now time.Time) (place, time.Time) {
	if l.fetching {
		return nowhere, time.Time{}
	}
	switch w := p.wanted(l, now); {
	case w.fresh+w.retries > 0:
		return inDue, time.Time{}
	case w.starved && l.standing == doubtful:
		return inDoubtful, time.Time{}
	case w.starved:
		return inUnproven, time.Time{}
	case !w.at.IsZero():
		return inLater, w.at
	}
	return nowhere, time.Time{}
}

// feed moves the lanes that had no room because of their standing, as far as there is room now.
func (p *places) feed(now time.Time) {
	p.shares.freed = false
	for _, was := range []place{inUnproven, inDoubtful} {
		q := &p.lists[was]
		for n := q.n; n > 0 && q.first != nil; n-- {
			l := q.first
			if p.move(l, now); l.place == was {
				break
			}
		}
	}
}

// refill asks for a call of Plan if the latest one had no capacity and there is some again.
func (p *places) refill() {
	if p.full && p.shares.ready+p.shares.reserved <= p.shares.slots/2 && p.shares.bytes <= p.shares.maxBytes/2 {
		p.full = false
		p.wake()
	}
}

// wants says how many deliveries a lane may fetch now.
type wants struct {
	fresh, retries int
	lapsing        bool      // fresh counts deliveries that have lapsed
	starved        bool      // none, because of the lane's standing
	at             time.Time // none before that time; zero if it is not a matter of time alone
}

// limit reduces w to n deliveries in all. If both queues have some due, each gets half: a flood of
// one kind does not hold up the other.
func (w *wants) limit(n int) {
	if w.retries > 0 && w.fresh > 0 {
		w.retries = min(w.retries, (n+1)/2)
	}
	w.retries = min(w.retries, n)
	w.fresh = min(w.fresh, n-w.retries)
}

// lapseChunk is how many lapsed deliveries are fetched at once.
const lapseChunk = 256

// wanted returns what l may fetch now.
func (p *places) wanted(l *Lane, now time.Time) (w wants) {
	if l.paused {
		return w
	}
	b := &l.breaker
	fresh, retry, lapse := l.fresh.due, l.retry.due, time.Time{} // from when on there is one of the kind to fetch
	switch {
	case l.hold != "":
		fresh, retry = notBefore(fresh, l.heldUntil), notBefore(retry, l.heldUntil)
	case b.open:
		if !fresh.IsZero() {
			lapse = b.lapses(fresh, p.window)
		}
		fresh, retry = notBefore(fresh, b.probe), notBefore(retry, b.retry)
	}
	due := func(t time.Time) bool { return !t.IsZero() && !t.After(now) }
	switch {
	case due(lapse):
		return wants{fresh: lapseChunk, lapsing: true}
	case l.hold == "" && b.open && l.holds() > 0:
		return w // the attempt in flight says more
	case !due(fresh) && !due(retry):
		w.at = earlier(lapse, earlier(fresh, retry))
		return w
	}
	n, at, starved := p.shares.room(l, now)
	if n <= 0 || !at.IsZero() {
		return wants{at: at, starved: starved}
	}
	if due(retry) {
		w.retries = n
	}
	if due(fresh) {
		w.fresh = n
	}
	w.limit(n)
	return w
}

// notBefore returns t, but not before floor. It leaves the zero time alone.
func notBefore(t, floor time.Time) time.Time {
	if !t.IsZero() && t.Before(floor) {
		return floor
	}
	return t
}
