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

// place moves l to the list that it belongs to.
func (s *Scheduler) place(l *Lane, now time.Time) {
	to, at := nowhere, time.Time{}
	if !l.fetching {
		switch w := s.wanted(l, now); {
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
			heap.Fix(&s.later, l.pos)
			if l.pos == 0 {
				s.config.Wake()
			}
		}
		return
	}
	switch l.place {
	case inDue:
		s.due.remove(l)
	case inUnproven:
		s.unproven.remove(l)
	case inDoubtful:
		s.doubtful.remove(l)
	case inLater:
		heap.Remove(&s.later, l.pos)
	}
	l.place, l.at = to, at
	switch to {
	case inDue:
		if s.due.push(l); !s.full {
			s.config.Wake()
		}
	case inUnproven:
		s.unproven.push(l)
	case inDoubtful:
		s.doubtful.push(l)
	case inLater:
		if heap.Push(&s.later, l); l.pos == 0 {
			s.config.Wake()
		}
	}
}

// feedStarved looks at lanes that had no room because of their standing, as far as there
// is room now.
func (s *Scheduler) feedStarved(now time.Time) {
	for _, q := range []*list{&s.unproven, &s.doubtful} {
		for n := q.n; n > 0 && q.first != nil; n-- {
			l, was := q.first, q.first.place
			if s.place(l, now); l.place == was {
				break
			}
		}
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
func (s *Scheduler) wanted(l *Lane, now time.Time) (w wants) {
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
		return s.wantedOpen(l, now)
	}
	if !fresh && !retry {
		w.at = earlier(l.fresh.due, l.retry.due)
		return w
	}
	n, at, starved := s.room(l, now)
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
func (s *Scheduler) wantedOpen(l *Lane, now time.Time) (w wants) {
	b := &l.breaker
	var probe, retry, lapse time.Time
	if !l.fresh.due.IsZero() {
		lapse = b.lapses(l.fresh.due, s.config.Window)
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
		if n, at, starved := s.room(l, now); n <= 0 || !at.IsZero() {
			return wants{at: at, starved: starved}
		}
	}
	return w
}

// list is a list of lanes.
type list struct {
	kind        int // of the links
	first, last *Lane
	n           int
}

const (
	byUse = iota
	byPlace
)

type links struct {
	prev, next *Lane
}

func (q *list) push(l *Lane) {
	l.links[q.kind].prev = q.last
	if q.last == nil {
		q.first = l
	} else {
		q.last.links[q.kind].next = l
	}
	q.last = l
	q.n++
}

func (q *list) remove(l *Lane) {
	k := &l.links[q.kind]
	if k.prev != nil {
		k.prev.links[q.kind].next = k.next
	} else {
		q.first = k.next
	}
	if k.next != nil {
		k.next.links[q.kind].prev = k.prev
	} else {
		q.last = k.prev
	}
	*k = links{}
	q.n--
}

// laneHeap is a container/heap of lanes, the one with the earliest at first.
type laneHeap []*Lane

func (h laneHeap) Len() int           { return len(h) }
func (h laneHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h laneHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].pos, h[j].pos = i, j
}

func (h *laneHeap) Push(x any) {
	l := x.(*Lane)
	l.pos = len(*h)
	*h = append(*h, l)
}

func (h *laneHeap) Pop() any {
	old := *h
	n := len(old) - 1
	l := old[n]
	old[n] = nil
	*h = old[:n]
	return l
}
