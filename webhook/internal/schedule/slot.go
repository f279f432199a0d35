package schedule

import "time"

// A Slot is the right to one attempt at a time, and the delivery that is attempted. A worker
// has one, which is empty at first.
type Slot struct {
	Item
	Lane *Lane // nil: there is no delivery

	began      time.Time
	period     int64 // for backlog.end
	overdue    bool
	prev, next *Slot
}

// Outcome is what an attempt tells about the destination.
type Outcome uint8

const (
	// NoAttempt tells nothing: there was no attempt.
	NoAttempt Outcome = iota
	// Answered says that the destination answered, whatever it thinks of the delivery.
	Answered
	// Failing says that it failed, as it would have with another delivery. Fail was
	// called before.
	Failing
)

// Next ends the attempt of t, if it has one, and sets t to the next delivery to attempt. It waits for one, and returns false when the worker has to end.
func (s *Scheduler) Next(t *Slot, o Outcome) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.Lane != nil {
		s.release(t, o)
	}
	*t = Slot{}
	l := s.run.next()
	if l == nil {
		return false
	}
	now := s.config.Now()
	s.shares.clock = now
	t.Lane, t.Item, t.began = l, l.ready.pop(), now
	s.taken.push(t)
	l.active++
	s.shares.active++
	s.shares.ready--
	l.trial = l.breaker.open
	if l.rate.interval > 0 {
		l.rate.take(now)
	}
	if l.behind && s.run.backlog.lane != nil {
		t.period = s.run.backlog.begin(now)
	}
	s.run.add(l)
	s.places.update(l, now)
	s.places.refill()
	return true
}

// release takes the delivery of t, whose attempt has ended, out of its lane.
func (s *Scheduler) release(t *Slot, o Outcome) {
	now := s.config.Now()
	l := t.Lane
	if o == Answered {
		l.answer(now)
		s.shares.setStanding(l, proven)
	}
	if !t.overdue {
		s.taken.remove(t)
	}
	l.active--
	s.shares.active--
	s.shares.drop(l, 1, t.Size)
	s.run.ended(t.period, now)
	s.run.add(l)
	s.places.update(l, now)
	s.places.refill()
}

// Overdue returns what was claimed longer ago than limit and is still being attempted, or
// ready, so that it goes back to the store. An attempt that hangs keeps its slot.
func (s *Scheduler) Overdue(limit time.Duration) (items []Item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.config.Now()
	for t := s.taken.first; t != nil && now.Sub(t.began) > limit; t = s.taken.first {
		s.taken.remove(t)
		t.overdue = true
		items = append(items, t.Item)
	}
	for _, l := range s.lanes.byID {
		if l.ready.len() > 0 && now.Sub(l.ready.ring[l.ready.head].since) > limit {
			items = append(items, s.take(l)...)
			s.places.update(l, now)
		}
	}
	return items
}

// slotList is a list of slots, the one that was taken first at the front.
type slotList struct {
	first, last *Slot
}

func (q *slotList) push(t *Slot) {
	if t.prev = q.last; t.prev != nil {
		t.prev.next = t
	} else {
		q.first = t
	}
	q.last = t
}

func (q *slotList) remove(t *Slot) {
	if t.prev != nil {
		t.prev.next = t.next
	} else {
		q.first = t.next
	}
	if t.next != nil {
		t.next.prev = t.prev
	} else {
		q.last = t.prev
	}
	t.prev, t.next = nil, nil
}
