package webhook

import (
	"context"
	"errors"
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
// Where the Queue implements Pauses, a pause holds for all forwarders that share
// the store, within about a second, and until Resume. The stores of this module do;
// with all but memqueue a pause survives restarts, and a forwarder attempts nothing
// before it knows what is paused. After an error of the store a pause holds only if
// the store has kept it, as when no more than its answer was lost. With another Queue
// a pause is this Forwarder's, and ends with it.
//
// Pause returns ErrUnknownDestination for what Forward would not take. To pause
// twice is to pause.
func (f *Forwarder) Pause(ctx context.Context, destination string) error {
	if err := f.setPaused(ctx, destination, true); err != nil {
		return fmt.Errorf("webhook: pausing: %w", err)
	}
	f.returnAll(f.dispatch.pause(destination, time.Now()))
	return nil
}

// Resume ends a pause, if there is one, whichever forwarder of the store began it.
// Its errors are those of Pause.
func (f *Forwarder) Resume(ctx context.Context, destination string) error {
	if err := f.setPaused(ctx, destination, false); err != nil {
		return fmt.Errorf("webhook: resuming: %w", err)
	}
	f.dispatch.unpause(destination, time.Now())
	return nil
}

// setPaused checks a destination, and tells the store.
func (f *Forwarder) setPaused(ctx context.Context, destination string, paused bool) error {
	if err := f.known(destination); err != nil {
		return err
	}
	if q, ok := f.config.Queue.(Pauses); ok {
		return q.SetPaused(ctx, destination, paused)
	}
	return nil
}

// returnAll gives back what was leased.
func (f *Forwarder) returnAll(vs []leased) {
	for _, v := range vs {
		f.settler.giveBack(v.Delivery)
	}
}

// pausesEvery is how often a store that is shared is asked what is paused.
const pausesEvery = time.Second

// learnPauses makes the pauses those of the store. An error changes nothing.
func (f *Forwarder) learnPauses(ctx context.Context, q Pauses) error {
	before := f.dispatch.pauseChanges()
	paused, err := q.Paused(ctx)
	if err != nil {
		return err
	}
	f.returnAll(f.dispatch.setPaused(paused, before, time.Now()))
	return nil
}

// firstPauses waits until the pauses of the store are known, so that nothing is
// attempted that is paused.
func (f *Forwarder) firstPauses(ctx context.Context, q Pauses) error {
	var trouble outage
	for {
		err := f.learnPauses(ctx, q)
		switch {
		case err == nil:
			if trouble.over() {
				f.config.Logger.Info("webhook: the store works again")
			}
			return nil
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, ErrClosed):
			return fmt.Errorf("webhook: asking what is paused: %w", err)
		}
		if trouble.failed() {
			f.config.Logger.Error("webhook: the store fails, nothing is delivered", "error", err)
		}
		trouble.wait(ctx)
	}
}

// followPauses follows the pauses of the store until ctx is done. While the store
// fails they stay as they are; leasing tells of that.
func (f *Forwarder) followPauses(ctx context.Context, q Pauses) {
	t := time.NewTicker(pausesEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		_ = f.learnPauses(ctx, q)
	}
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
	// Since is when that began; zero if that was before this process and is not
	// known.
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

// pause pauses a destination, and returns what its lane has ready.
func (d *dispatcher) pause(destination string, now time.Time) []leased {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pauses++
	return d.pauseLane(destination, now, now)
}

func (d *dispatcher) pauseLane(destination string, since, now time.Time) []leased {
	l := d.lane(destination, now)
	if l.paused {
		return nil
	}
	l.stop(now)
	d.paused[destination] = since
	l.paused = true
	return d.take(l)
}

func (d *dispatcher) unpause(destination string, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pauses++
	d.unpauseLane(destination, now)
}

func (d *dispatcher) unpauseLane(destination string, now time.Time) {
	l := d.lane(destination, now) // paused, if it had been forgotten meanwhile
	delete(d.paused, destination)
	if !l.paused {
		return
	}
	l.paused = false
	l.resume(now)
	d.wake()
}

// pauseChanges is how often pause and unpause were called.
func (d *dispatcher) pauseChanges() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.pauses
}

// setPaused makes the pauses those of the map, whose values say since when, and
// returns what the lanes that this pauses have ready. It does nothing if there were
// other calls of pause and unpause than these many changes: the map may be older
// than those.
func (d *dispatcher) setPaused(paused map[string]time.Time, changes int, now time.Time) (back []leased) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.pauses != changes {
		return nil
	}
	for id := range d.paused {
		if _, still := paused[id]; !still {
			d.unpauseLane(id, now)
		}
	}
	for id, since := range paused {
		if _, known := d.paused[id]; !known {
			back = append(back, d.pauseLane(id, since, now)...)
		}
	}
	return back
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
	for id, since := range d.paused {
		hs = append(hs, Held{Destination: id, Hold: HoldPaused, Since: since})
	}
	for _, l := range d.lanes {
		h := Held{Destination: l.id}
		switch {
		case l.paused:
			continue
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
