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
	s.setStanding(l, doubtful)
	items := s.take(l)
	s.place(l, now)
	return items, wait
}

// Pause pauses a destination, and returns what its lane has ready.
func (s *Scheduler) Pause(destination string) []Item {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pauses++
	now := s.config.Now()
	return s.pause(destination, now, now)
}

func (s *Scheduler) pause(destination string, since, now time.Time) []Item {
	l := s.lane(destination, now)
	if l.paused {
		return nil
	}
	l.stop(now)
	s.paused[destination] = since
	l.paused = true
	items := s.take(l)
	s.place(l, now)
	return items
}

// Resume ends the pause of a destination, if there is one.
func (s *Scheduler) Resume(destination string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pauses++
	s.resume(destination, s.config.Now())
}

func (s *Scheduler) resume(destination string, now time.Time) {
	l := s.lane(destination, now) // paused, if it had been forgotten meanwhile
	delete(s.paused, destination)
	if !l.paused {
		return
	}
	l.paused = false
	l.resume(now)
	s.place(l, now)
}

// PauseChanges is how often Pause and Resume were called.
func (s *Scheduler) PauseChanges() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pauses
}

// SetPaused makes the pauses those of the map, whose values say since when, and returns
// what the lanes that this pauses have ready. It does nothing if there were other calls of
// Pause and Resume than these many changes: the map may be older than those.
func (s *Scheduler) SetPaused(paused map[string]time.Time, changes int) (back []Item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pauses != changes {
		return nil
	}
	now := s.config.Now()
	for id := range s.paused {
		if _, still := paused[id]; !still {
			s.resume(id, now)
		}
	}
	for id, since := range paused {
		if _, known := s.paused[id]; !known {
			back = append(back, s.pause(id, since, now)...)
		}
	}
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
	for id, since := range s.paused {
		all = append(all, Held{Destination: id, Paused: true, Since: since})
	}
	for _, l := range s.lanes {
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
