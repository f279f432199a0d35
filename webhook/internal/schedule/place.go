package schedule

import (
	"container/heap"
	"time"
)

// A place says in which of the scheduler's lists a lane is: what decides when it fetches.
type place uint8

const (
	nowhere    place = iota // nothing waits, or it has no room until an attempt ends
	inDue                   // it may fetch now
	inUnproven              // it has no room because lanes that were not answered hold too much
	inDoubtful              // it has no room because lanes that fail hold too much
	inLater                 // it may fetch from a time on
)

// places knows which lanes may fetch now, and when the others may.
type places struct {
	shares *shares
	window time.Duration // Config.Window
	wake   func()        // Config.Wake
	full   bool          // Plan had no capacity

	due                list     // lanes that have something due in the store, and room for it
	unproven, doubtful list     // lanes that have no room because of their standing
	later              laneHeap // lanes that may fetch from a time on
}

func newPlaces(s *shares, window time.Duration, wake func()) places {
	return places{
		shares: s, window: window, wake: wake,
		due: list{kind: byPlace}, unproven: list{kind: byPlace}, doubtful: list{kind: byPlace},
	}
}

// update moves l to the list that it belongs to, and then those lanes that have room now.
func (p *places) update(l *Lane, now time.Time) {
	p.move(l, now)
	if p.shares.freed {
		p.feed(now)
	}
}

// move moves l to the list that it belongs to.
func (p *places) move(l *Lane, now time.Time) {
	to, at := nowhere, time.Time{}
	if !l.fetching {
		switch w := p.wanted(l, now); {
		case w.fresh+w.retries > 0:
			to = inDue
		case w.starved && l.standing == doubtful:
			to = inDoubtful
		case w.starved:
			to = inUnproven
		case !w.at.IsZero():
			to, at = inLater, w.at
		}
	}
	if to == l.place {
		if to == inLater && !at.Equal(l.at) {
			l.at = at
			heap.Fix(&p.later, l.pos)
			if l.pos == 0 {
				p.wake()
			}
		}
		return
	}
	switch l.place {
	case inDue:
		p.due.remove(l)
	case inUnproven:
		p.unproven.remove(l)
	case inDoubtful:
		p.doubtful.remove(l)
	case inLater:
		heap.Remove(&p.later, l.pos)
	}
	l.place, l.at = to, at
	switch to {
	case inDue:
		if p.due.push(l); !p.full {
			p.wake()
		}
	case inUnproven:
		p.unproven.push(l)
	case inDoubtful:
		p.doubtful.push(l)
	case inLater:
		if heap.Push(&p.later, l); l.pos == 0 {
			p.wake()
		}
	}
}

// feed looks at lanes that had no room because of their standing, as far as there
// is room now.
func (p *places) feed(now time.Time) {
	p.shares.freed = false
	for _, q := range []*list{&p.unproven, &p.doubtful} {
		for n := q.n; n > 0 && q.first != nil; n-- {
			l, was := q.first, q.first.place
			if p.move(l, now); l.place == was {
				break
			}
		}
	}
}

// refill asks for a call of Plan if the last one had no capacity and there is some again.
func (p *places) refill() {
	if p.full && p.shares.ready+p.shares.reserved <= p.shares.slots/2 && p.shares.bytes <= p.shares.maxBytes/2 {
		p.full = false
		p.wake()
	}
}

// wants is what a lane may fetch now.
type wants struct {
	fresh, retries int
	lapsing        bool      // fresh is for deliveries that have lapsed
	starved        bool      // none, because of the lane's standing
	at             time.Time // none before; zero if it is not a matter of time alone
}

// limit cuts w down to n in all.
func (w *wants) limit(n int) {
	if w.retries > 0 && w.fresh > 0 {
		w.retries = min(w.retries, (n+1)/2)
	}
	w.retries = min(w.retries, n)
	w.fresh = min(w.fresh, n-w.retries)
}

// lapseChunk is how many deliveries are fetched at once that have lapsed.
const lapseChunk = 256

// wanted returns what l may fetch now.
//
// If both retries and fresh deliveries are due, each has half of the room: a flood of one
// kind does not hold up the other.
func (p *places) wanted(l *Lane, now time.Time) (w wants) {
	fresh, retry := l.fresh.isDue(now), l.retry.isDue(now)
	b := &l.breaker
	switch {
	case l.fresh.due.IsZero() && l.retry.due.IsZero(), l.paused:
		return w
	case l.hold != "":
		if now.Before(l.heldUntil) {
			w.at = l.heldUntil
			return w
		}
	case b.open:
		return p.wantedOpen(l, now)
	}
	if !fresh && !retry {
		w.at = earlier(l.fresh.due, l.retry.due)
		return w
	}
	n, at, starved := p.shares.room(l, now)
	if n <= 0 || !at.IsZero() {
		w.at, w.starved = at, starved
		return w
	}
	if retry {
		w.retries = n
	}
	if fresh {
		w.fresh = n
	}
	w.limit(n)
	return w
}

// wantedOpen is wanted while the breaker is open.
func (p *places) wantedOpen(l *Lane, now time.Time) (w wants) {
	b := &l.breaker
	var probe, retry, lapse time.Time
	if !l.fresh.due.IsZero() {
		lapse = b.lapses(l.fresh.due, p.window)
		if probe = b.probe; probe.Before(l.fresh.due) {
			probe = l.fresh.due
		}
	}
	if !l.retry.due.IsZero() {
		if retry = b.retry; retry.Before(l.retry.due) {
			retry = l.retry.due
		}
	}
	due := func(t time.Time) bool { return !t.IsZero() && !now.Before(t) }
	switch {
	case due(lapse):
		w.fresh, w.lapsing = lapseChunk, true
	case l.holds() > 0:
		// The attempt under way says more.
	case due(retry):
		w.retries = 1
	case due(probe):
		w.fresh = 1
	default:
		w.at = earlier(retry, earlier(probe, lapse))
		return w
	}
	if !w.lapsing && w.fresh+w.retries > 0 {
		if n, at, starved := p.shares.room(l, now); n <= 0 || !at.IsZero() {
			return wants{at: at, starved: starved}
		}
	}
	return w
}
