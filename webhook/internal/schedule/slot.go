package schedule

import "time"

// A Slot is the right to make one attempt at a time, with the delivery that is being attempted.
// Each worker has one Slot, which is empty at first.
type Slot struct {
	Item
	Lane *Lane // nil: there is no delivery

	began   time.Time // by the clock of the process, because the store's clock may be set forward
	period  int64     // the argument for backlog.end
	overdue bool      // Scheduler.Overdue has returned the delivery
}

// Next ends the attempt of t, if t has a delivery. answered says that the destination answered,
// even if it refused the delivery. Then Next waits for the next delivery, and puts it into t. It
// returns false when the worker must end.
func (s *Scheduler) Next(t *Slot, answered bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.Lane != nil {
		s.release(t, answered)
	} else {
		s.slots[t] = true
	}
	*t = Slot{}
	l := s.run.next()
	if l == nil {
		delete(s.slots, t)
		return false
	}
	now := s.config.Now()
	s.shares.clock = now
	t.Lane, t.Item, t.began = l, l.ready.pop(), time.Now()
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

func (s *Scheduler) release(t *Slot, answered bool) {
	now := s.config.Now()
	l := t.Lane
	if answered {
		l.answer(now)
		s.shares.setStanding(l, proven)
	}
	l.active--
	s.shares.active--
	s.shares.drop(l, 1, t.Size)
	if s.run.backlog.end(t.period); s.run.behind.len() > 0 && s.run.backlog.free(now) {
		s.run.lanes.push(s.run.behind.pop()) // no summon: the worker of t takes a lane next
	}
	s.run.add(l)
	s.places.update(l, now)
	s.places.refill()
}

// Overdue returns deliveries that have taken longer than limit, so that the caller can return them
// to the store: hanging has those whose attempt still runs, and ready those of lanes whose first
// ready delivery waits that long for a slot. Overdue returns each delivery once. An attempt that
// hangs keeps its slot, and still uses its delivery.
func (s *Scheduler) Overdue(limit time.Duration) (hanging, ready []Item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.config.Now()
	for t := range s.slots {
		if t.Lane != nil && !t.overdue && time.Since(t.began) > limit {
			t.overdue = true
			hanging = append(hanging, t.Item)
		}
	}
	for _, l := range s.lanes.byID {
		if l.ready.len() > 0 && now.Sub(l.ready.ring[l.ready.head].since) > limit {
			ready = append(ready, s.take(l)...)
			s.places.update(l, now)
		}
	}
	return hanging, ready
}
