package webhook

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Pause keeps the deliveries of a destination until Resume. Attempts in flight
// end as they would have. What was not attempted before has its whole window
// after; the window of what was goes on, but a delivery whose window ends during
// the pause is attempted once more after it before it is given up. The same
// holds while a destination is disabled or unknown.
//
// A pause is this Forwarder's, and ends with it: to keep one through restarts,
// set Destination.Disabled. It returns ErrUnknownDestination for what Forward
// would not take. To pause twice is to pause.
func (f *Forwarder) Pause(destination string) error {
	if err := f.known(destination); err != nil {
		return fmt.Errorf("webhook: pausing: %w", err)
	}
	for _, v := range f.dispatch.pause(destination, time.Now()) {
		f.settler.giveBack(v.Delivery)
	}
	return nil
}

// Resume ends a pause, if there is one.
func (f *Forwarder) Resume(destination string) error {
	if err := f.known(destination); err != nil {
		return fmt.Errorf("webhook: resuming: %w", err)
	}
	f.dispatch.unpause(destination, time.Now())
	return nil
}

// A Hold says why the deliveries of a destination wait.
type Hold string

// The holds.
const (
	// HoldPaused: Pause was called.
	HoldPaused Hold = "paused"
	// HoldDisabled: Destination.Disabled is set.
	HoldDisabled Hold = "disabled"
	// HoldUnknown: there is no such destination.
	HoldUnknown Hold = "unknown"
	// HoldInvalid: what Lookup returned is not valid.
	HoldInvalid Hold = "invalid"
	// HoldLookup: Lookup fails.
	HoldLookup Hold = "lookup"
	// HoldFailing: the destination failed too often in a row. It is probed at
	// intervals; what was attempted before keeps its schedule.
	HoldFailing Hold = "failing"
)

// A Held destination is one whose deliveries wait although they are due.
type Held struct {
	// Destination is its id.
	Destination string
	// Hold is why.
	Hold Hold
	// Since is when that began; zero if it was before this process.
	Since time.Time
	// Until is when it is found out next whether that is over: for HoldFailing
	// from then on, once a delivery is due. It is zero for HoldPaused.
	Until time.Time
	// Reason is why the latest attempt failed, for HoldFailing.
	Reason Reason
}

// Held returns the destinations that are held now, by id. One that nothing has
// been due for within a minute is left out, unless it is paused.
func (f *Forwarder) Held() []Held {
	return f.dispatch.holds()
}

// pause returns what the lane has ready.
func (d *dispatcher) pause(destination string, now time.Time) []leased {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.lane(destination, now)
	if l.paused {
		return nil
	}
	l.stop(now)
	d.paused[destination] = true
	l.paused = true
	return d.take(l)
}

func (d *dispatcher) unpause(destination string, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.paused, destination)
	l := d.lane(destination, now)
	if !l.paused {
		return
	}
	l.paused = false
	l.resume(now)
	d.wake()
}

// outlasted reports whether a window ended while the destination of l could not
// be used.
func (d *dispatcher) outlasted(l *lane, expires time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return l.outlasted(expires)
}

func (d *dispatcher) holds() []Held {
	d.mu.Lock()
	defer d.mu.Unlock()
	var hs []Held
	for _, l := range d.lanes {
		h := Held{Destination: l.id}
		switch {
		case l.paused:
			h.Hold, h.Since = HoldPaused, l.stopped
		case l.hold != "":
			h.Hold, h.Since, h.Until = l.hold, l.stopped, l.parked
		case l.breaker.open:
			h.Hold, h.Since, h.Until, h.Reason = HoldFailing, l.breaker.since, l.breaker.retry, l.breaker.last
		default:
			continue
		}
		hs = append(hs, h)
	}
	slices.SortFunc(hs, func(a, b Held) int { return strings.Compare(a.Destination, b.Destination) })
	return hs
}
