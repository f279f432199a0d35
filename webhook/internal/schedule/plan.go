package schedule

import "time"

// A Want is what is to be fetched of one queue.
type Want struct {
	Lane    *Lane
	Retries bool
	Max     int
	// Next is to be set: when the earliest is due that was left, zero if none was.
	Next time.Time
}

// maxWants bounds the queues of one fetch, so that the first results come soon.
const maxWants = 1024

// Plan appends to wants what is to be fetched now. It returns how many bytes may be
// fetched, and when something is to be fetched at the latest that cannot be now, zero if
// nothing. If there is something in wants, the next call has to be Fetched or Failed.
func (s *Scheduler) Plan(wants []Want) (_ []Want, maxBytes int64, again time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.config.Now()
	s.shares.clock = now
	s.lanes.forget(now)
	for len(s.places.later) > 0 && !s.places.later[0].at.After(now) {
		s.places.update(s.places.later[0], now)
	}
	n := s.shares.capacity()
	maxBytes = s.config.Bytes - s.shares.bytes
	if s.places.full = n <= 0 || maxBytes <= 0; s.places.full {
		return wants, 0, time.Time{}
	}
	for s.places.due.first != nil && n > 0 && len(wants) < maxWants {
		share := max(1, n/s.places.due.n)
		l := s.places.due.first
		s.lanes.touch(l, now)
		w := s.places.wanted(l, now)
		if w.fresh+w.retries == 0 {
			s.places.update(l, now)
			continue
		}
		if w.lapsing {
			l.lapsing = true
		} else {
			w.limit(min(share, n))
			n -= w.fresh + w.retries
			s.shares.offered[l.standing] += w.fresh + w.retries
		}
		l.answers = 0
		l.fetching = true
		l.fresh.noted, l.retry.noted = time.Time{}, time.Time{}
		s.places.update(l, now)
		if w.retries > 0 {
			wants = append(wants, Want{Lane: l, Retries: true, Max: w.retries})
		}
		if w.fresh > 0 {
			wants = append(wants, Want{Lane: l, Max: w.fresh})
		}
	}
	if len(s.places.later) > 0 {
		again = s.places.later[0].at
	}
	return wants, maxBytes, again
}

// Fetched takes over what was fetched for wants. It returns what has to go back to the
// store because its lane has to wait, and what has lapsed: it is to be given up without
// an attempt.
func (s *Scheduler) Fetched(wants []Want, items []Item) (back, lapsed []Item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.config.Now()
	for i := range wants {
		w := &wants[i]
		w.Lane.queue(w.Retries).fetched(w.Next)
	}
	s.shares.offered = [standings]int{}
	for _, it := range items {
		s.shares.bytes += it.Size
		l := s.lanes.of(it.Destination, now)
		b := &l.breaker
		switch {
		case s.run.closed, l.paused:
			back = append(back, it)
			continue
		case b.open && !it.Retry && !now.Before(b.lapses(it.Due, s.config.Window)):
			lapsed = append(lapsed, it)
			continue
		case b.open && !it.Retry && now.Before(b.probe):
			// It was planned before the lane began to wait, or the store mixes the two
			// queues. Then retries are hidden until the probe.
			b.retry = b.probe
			back = append(back, it)
			continue
		case b.open && l.holds() > 0, l.hold != "" && l.holds() > 0:
			back = append(back, it)
			continue
		}
		s.run.backlog.note(l, it.Due, now)
		l.largest = max(it.Size, l.largest-l.largest/16)
		it.since = now
		s.shares.hold(l, 1, it.Size)
		l.ready.push(it)
		s.shares.ready++
		s.run.add(l)
	}
	s.endFetch(wants, now)
	return back, lapsed
}

// Failed says that what Plan asked for could not be fetched.
func (s *Scheduler) Failed(wants []Want) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shares.offered = [standings]int{}
	s.endFetch(wants, s.config.Now())
}

func (s *Scheduler) endFetch(wants []Want, now time.Time) {
	for i := range wants {
		l := wants[i].Lane
		l.fetching, l.lapsing = false, false
		s.places.update(l, now)
	}
	s.places.feed(now) // less may have come than there was room for
}
