package schedule

import (
	"slices"
	"strings"
	"time"
)

const (
	maxHold      = 30 * time.Second // between two look-ups of a destination that cannot be used
	recheckSpace = time.Millisecond // between two destinations of RecheckAll
)

// Hold suspends the destination of the attempt t, because it cannot be used for the reason why. It
// returns the ready deliveries of the lane, for the store, and how long the destination waits: if
// soon, one second at first, and twice as long at each further Hold in a row, up to maxHold;
// otherwise maxHold. If Recheck or RecheckAll was called since the attempt began, it does not wait.
func (s *Scheduler[S, V]) Hold(t *Slot[S, V], why string, soon bool) ([]Item[V], time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, now := t.Lane, s.config.Now()
	wait := maxHold
	if soon {
		wait = min(time.Second<<min(l.holdsInRow, 10), maxHold)
	}
	if t.rechecks != l.rechecks {
		wait = 0
	}
	if l.hold == "" || !now.Before(l.heldUntil) { // otherwise the attempt began before this hold
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

// Leave ends the attempt t early, because the look-up of its destination takes long, so that its slot
// is free. It returns the deliveries of the lane, for the store. The worker ends after the look-up:
// it calls Use or Hold, and then LookedUp. Until then the lane makes no attempt. Leave returns false,
// and does nothing, if as many attempts as there are slots have left already: these look-ups have a
// share of their own, so that they delay no other.
func (s *Scheduler[S, V]) Leave(t *Slot[S, V]) (back []Item[V], left bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.left >= s.config.Slots {
		return nil, false
	}
	l, now := t.Lane, s.config.Now()
	s.left++
	l.looking = now.Add(maxHold) // in case that the look-up never ends
	back = append(s.take(l), t.Items()...)
	delete(s.slots, t)
	s.release(t, false, now)
	s.run.leave()
	return back, true
}

// LookedUp says that the look-up of an attempt that has left its slot has ended.
func (s *Scheduler[S, V]) LookedUp(t *Slot[S, V]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left--
	t.Lane.looking = time.Time{}
	s.places.update(t.Lane, s.config.Now())
}

// Recheck lets the next attempt of a destination begin at once, although the destination is held or
// fails. It does not end a pause.
func (s *Scheduler[S, V]) Recheck(destination string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lanes[destination]
	if l == nil {
		return
	}
	now := s.config.Now()
	l.rechecks++
	l.heldUntil = now
	l.breaker.asked = 2 // one attempt of each queue, because Plan alternates between them
	s.places.update(l, now)
}

// RecheckAll says that any destination may have changed. Those that are held are looked up again, and
// those that fail are probed, after a second at the earliest: one destination each recheckSpace, however
// often RecheckAll is called, so that many of them do not crowd out the others. One whose turn would come
// after its next look-up or probe keeps the time of that.
func (s *Scheduler[S, V]) RecheckAll() {
	s.each(nil, func(l *Lane[S, V]) {
		l.rechecks++
		now, b := s.config.Now(), &l.breaker
		turn := s.recheck
		if turn.Before(now) || turn.After(now.Add(2*maxHold)) { // the clock may have been set back
			turn = now
		}
		if b.open && l.active > 0 {
			b.probes = 0 // this attempt may have the old settings: if it fails, a probe follows within a second
		}
		switch probe := turn.Add(retrySpace); {
		case l.hold != "" && turn.Before(l.heldUntil):
			l.heldUntil = turn
		case l.hold == "" && b.open && probe.Before(b.probe):
			b.probe, b.retry = probe, earlier(b.retry, probe)
		default:
			return
		}
		s.recheck = turn.Add(recheckSpace)
		s.places.update(l, now)
	})
}

// A Pause stops the attempts of a destination's deliveries until it is resumed.
type Pause struct {
	Since   time.Time
	Resumed time.Time // zero while the pause lasts
	Why     string    // for Held
	Reason  string    // for Held
	Bury    bool      // workers get the deliveries all the same, to turn them into dead letters
}

// holds reports whether the pauses stop the deliveries of a destination.
func holds(paused map[string]Pause, destination string) bool {
	p, ok := paused[destination]
	return ok && !p.Bury && p.Resumed.IsZero()
}

// SetPaused replaces all pauses, by destination. It returns the ready deliveries of the lanes that
// become paused, for the caller to return to the store. The caller has read the pauses when their
// latest change had a version, or later. SetPaused ignores them if it has got others of a later version.
func (s *Scheduler[S, V]) SetPaused(paused map[string]Pause, version uint64) (back []Item[V]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if version < s.version {
		return nil
	}
	s.version = version
	now := s.config.Now()
	for id := range s.paused {
		if holds(s.paused, id) && !holds(paused, id) {
			l := s.lane(id, now) // if the lane was dropped since, this makes a new one, which is paused, too
			l.paused = false
			l.resume(now)
			s.places.update(l, now)
		}
	}
	s.paused = paused
	for id := range paused {
		if l := s.lanes[id]; l != nil && !l.paused && holds(paused, id) {
			l.stop(now)
			l.paused = true
			back = append(back, s.take(l)...)
			s.places.update(l, now)
		}
	}
	return back
}

// Outlasted reports whether the retry window of a delivery, which ended at expires, ended while the
// destination of l could not be used. If so, the delivery gets one more attempt now.
func (s *Scheduler[S, V]) Outlasted(l *Lane[S, V], expires time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.paused[l.ID] // perhaps of a process before this one
	return expires.Before(l.resumed) && (l.stopped.IsZero() || expires.After(l.stopped)) ||
		expires.Before(p.Resumed) && expires.After(p.Since)
}

// A Held describes a destination whose deliveries wait although they are due.
type Held struct {
	Destination  string
	Why          string // the argument of Hold, or that of the Pause; empty if the destination fails
	Since, Until time.Time
	Reason       string // of the Pause, or of the latest failure
}

// Held returns the destinations that are held, of those in only or of all if it is empty, in the order
// of their ids.
func (s *Scheduler[S, V]) Held(only []string) (all []Held) {
	s.mu.Lock()
	paused := s.paused
	s.mu.Unlock()
	for id, p := range paused {
		if len(only) > 0 && !slices.Contains(only, id) {
			continue
		}
		if p.Resumed.IsZero() {
			all = append(all, Held{Destination: id, Why: p.Why, Since: p.Since, Reason: p.Reason})
		}
	}
	s.each(only, func(l *Lane[S, V]) {
		h := Held{Destination: l.ID}
		switch p, paused := paused[l.ID]; {
		case paused && p.Resumed.IsZero():
			return
		case l.hold != "":
			h.Why, h.Since, h.Until = l.hold, l.stopped, l.heldUntil
		case l.breaker.open:
			h.Since, h.Until, h.Reason = l.breaker.since, l.nextAttempt(), l.breaker.reason
		default:
			return
		}
		all = append(all, h)
	})
	slices.SortFunc(all, func(a, b Held) int { return strings.Compare(a.Destination, b.Destination) })
	return all
}
