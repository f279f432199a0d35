package schedule

import "time"

// A Slot is the right to one attempt at a time, with the delivery that is attempted. Each worker has
// one, which is empty at first.
type Slot struct {
	Item
	Lane *Lane // nil: there is no delivery

	began   time.Time // by the clock of the process, as the store's may be set forward
	period  int64     // for backlog.end
	overdue bool      // the method Overdue has returned the delivery
	pos     int       // in Scheduler.taken
}

// Outcome is what an attempt says about the destination.
type Outcome uint8

const (
	// NoAttempt says nothing: there was no attempt.
	NoAttempt Outcome = iota
	// Answered says that the destination answered, also if it refused the delivery.
	Answered
	// Failing says that the destination failed, as it would have with another delivery. Fail
	// was called before.
	Failing
)

// Next ends the attempt of t, if it has one, and sets t to the next delivery to attempt. It waits for
// one. It returns false when the worker has to end.
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
	t.Lane, t.Item, t.began = l, l.ready.pop(), time.Now()
	s.taken.add(t)
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
	s.taken.remove(t)
	l.active--
	s.shares.active--
	s.shares.drop(l, 1, t.Size)
	s.run.ended(t.period, now)
	s.run.add(l)
	s.places.update(l, now)
	s.places.refill()
}

// Overdue returns the deliveries that have been attempted, or ready, for longer than limit, so that
// they go back to the store. It returns each once. An attempt that hangs keeps its slot.
func (s *Scheduler) Overdue(limit time.Duration) (items []Item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.config.Now()
	for _, t := range s.taken {
		if !t.overdue && time.Since(t.began) > limit {
			t.overdue = true
			items = append(items, t.Item)
		}
	}
	for _, l := range s.lanes.byID {
		if l.ready.len() > 0 && now.Sub(l.ready.ring[l.ready.head].since) > limit {
			items = append(items, s.take(l)...)
			s.places.update(l, now)
		}
	}
	return items
}

// slots are the slots that have a delivery, in no order.
type slots []*Slot

func (q *slots) add(t *Slot) {
	t.pos = len(*q)
	*q = append(*q, t)
}

func (q *slots) remove(t *Slot) {
	last := len(*q) - 1
	moved := (*q)[last]
	moved.pos = t.pos
	(*q)[t.pos], (*q)[last] = moved, nil
	*q = (*q)[:last]
}
