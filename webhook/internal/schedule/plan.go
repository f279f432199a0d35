package schedule

import "time"

// A Want asks for deliveries of one queue.
type Want[S, V any] struct {
	Lane    *Lane[S, V]
	Retries bool
	Max     int
	// Next is when the first delivery in the queue is due, zero if there is none. After a fetch, the
	// caller of Plan sets it to the first delivery that the fetch has left.
	Next time.Time
}

const (
	maxWants = 1024 // queues of one fetch at most, so that the first results arrive soon
	maxDue   = 256  // lanes that become due in one Plan at most, so that Plan holds the lock for a short time
)

// Plan appends to wants the queues to fetch from now. maxBytes bounds the bodies of the fetch.
// again is when further deliveries can be fetched, zero if that depends on more than time. If there
// are wants, the caller must call Fetched before it calls Plan again.
func (s *Scheduler[S, V]) Plan(wants []Want[S, V]) (_ []Want[S, V], maxBytes int64, again time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.config.Now()
	s.shares.clock = now
	later := &s.places.later
	for n := 0; n < maxDue && len(*later) > 0 && !(*later)[0].at.After(now); n++ {
		s.places.update((*later)[0], now)
	}
	n := s.shares.capacity()
	maxBytes = s.config.Bytes - s.shares.bytes
	if s.places.full = n <= 0 || maxBytes <= 0; s.places.full {
		return wants, 0, time.Time{}
	}
	for n > 0 && len(wants) < maxWants {
		l, rivals := s.places.next()
		if l == nil {
			break
		}
		l.touch(now)
		w, to, _ := s.places.wanted(l, now)
		if to != l.place {
			s.places.update(l, now)
			continue
		}
		if !w.lapsing {
			w.limit(min(max(n/rivals, 1), s.shares.allowance(l.standing)), l.more)
			l.more ^= 1
			n -= w.fresh + w.retries
			s.shares.offered[l.standing] += w.fresh + w.retries
		}
		l.fetching = true
		l.fresh.noted, l.retry.noted = time.Time{}, time.Time{}
		s.places.update(l, now)
		if w.retries > 0 {
			wants = append(wants, Want[S, V]{Lane: l, Retries: true, Max: w.retries * l.batch.events(), Next: l.retry.due})
		}
		if w.fresh > 0 {
			n := w.fresh
			if !w.lapsing {
				n *= l.batch.events()
			}
			wants = append(wants, Want[S, V]{Lane: l, Max: n, Next: l.fresh.due})
		}
	}
	if len(*later) > 0 {
		again = (*later)[0].at
	}
	return wants, maxBytes, again
}

// Fetched takes the deliveries that were fetched for wants, none if the store has failed. The
// caller returns those in back to the store, as their lanes have to wait, and buries the lapsed
// ones.
func (s *Scheduler[S, V]) Fetched(wants []Want[S, V], items []Item[V]) (back, lapsed []Item[V]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.config.Now()
	for i := range wants {
		w := &wants[i]
		h := &w.Lane.fresh
		if w.Retries {
			h = &w.Lane.retry
		}
		h.due = earlier(w.Next, h.noted) // Next may miss deliveries stored during the fetch
	}
	s.shares.offered = [standings]int{}
	for _, it := range items {
		s.shares.bytes += it.Size
		l := s.lane(it.Destination, now)
		l.took(&it)
		b := &l.breaker
		switch {
		case l.paused:
			back = append(back, it)
		case b.open && !it.Retry && !now.Before(b.lapses(it.Due, s.config.Window)):
			lapsed = append(lapsed, it)
		case b.open && !it.Retry && b.asked == 0 && now.Before(b.probe):
			// Either the fetch was planned before the breaker opened, or the store mixes the two queues. In
			// a mixed queue fresh deliveries hide retries, so retries wait for the probe, too.
			b.retry = b.probe
			back = append(back, it)
		case l.suspended() && l.active+l.batch.attempts(l.ready.len()+l.reserved+1) > 1:
			back = append(back, it)
		default:
			l.largest = max(it.Size, l.largest-l.largest/16)
			s.run.ready(l, it, now)
		}
	}
	for i := range wants {
		l := wants[i].Lane
		l.fetching = false
		if !isDue(l.fresh.due, now) {
			l.arrived = 0
		}
		s.places.update(l, now)
	}
	return back, lapsed
}
