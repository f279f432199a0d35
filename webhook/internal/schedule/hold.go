package schedule

import (
	"slices"
	"strings"
	"time"
)

// maxHold is how long a destination that cannot be used is left alone before it is looked
// up again.
const maxHold = 30 * time.Second

// Hold leaves the destination of l alone for a time because it cannot be used, and returns
// what it had ready, and for how long. If soon is set it may be usable soon: after the
// first Hold the lane waits for a second, after each further one twice as long, up to half
// a minute.
func (s *Scheduler) Hold(l *Lane, why string, soon bool) ([]Item, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.config.Now()
	wait := maxHold
	if soon {
		wait = min(time.Second<<min(l.holdsInRow, 10), maxHold)
	}
	if l.hold == "" || !now.Before(l.heldUntil) { // the first of those under way to say so
		l.holdsInRow++
		l.heldUntil = now.Add(wait)
	}
	l.stop(now)
	l.hold, l.known = why, false
	s.shares.setStanding(l, doubtful)
	items := s.take(l)
	s.places.update(l, now)
	return items, wait
}

// SetPaused makes the pauses those of the map, whose values say since when, and returns
// what the lanes that this pauses have ready. The map was read from the store, and readings
// are numbered from 1 in the order in which they began. One that began before the latest
// that was given may be older than it, and changes nothing.
func (s *Scheduler) SetPaused(paused map[string]time.Time, reading uint64) (back []Item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if reading < s.pauses {
		return nil
	}
	s.pauses = reading
	now := s.config.Now()
	for id := range s.lanes.paused {
		if _, still := paused[id]; !still {
			l := s.lanes.of(id, now) // paused, if it had been forgotten meanwhile
			l.paused = false
			l.resume(now)
			s.places.update(l, now)
		}
	}
	for id := range paused {
		if l := s.lanes.byID[id]; l != nil && !l.paused {
			l.stop(now)
			l.paused = true
			back = append(back, s.take(l)...)
			s.places.update(l, now)
		}
	}
	s.lanes.paused = paused
	return back
}

// Outlasted reports whether a retry window that ended at expires ended while the
// destination of l could not be used.
func (s *Scheduler) Outlasted(l *Lane, expires time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return expires.Before(l.resumed) && (l.stopped.IsZero() || expires.After(l.stopped))
}

// A Held is a destination whose deliveries wait although they are due.
type Held struct {
	Destination  string
	Paused       bool
	Why          string // that of Hold, empty if it fails or is paused
	Since, Until time.Time
	Reason       string // of the latest failure, if it fails
}

// Held returns the destinations that are held, by id.
func (s *Scheduler) Held() (all []Held) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, since := range s.lanes.paused {
		all = append(all, Held{Destination: id, Paused: true, Since: since})
	}
	for _, l := range s.lanes.byID {
		h := Held{Destination: l.ID}
		switch {
		case l.paused:
			continue
		case l.hold != "":
			h.Why, h.Since, h.Until = l.hold, l.stopped, l.heldUntil
		case l.breaker.open:
			h.Since, h.Until, h.Reason = l.breaker.since, l.breaker.next(l), l.breaker.reason
		default:
			continue
		}
		all = append(all, h)
	}
	slices.SortFunc(all, func(a, b Held) int { return strings.Compare(a.Destination, b.Destination) })
	return all
}
