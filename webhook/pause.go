package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hookferry/analytics/webhook/internal/schedule"
)

// Pause keeps the deliveries of a destination in the store until Resume. Attempts in flight go on.
//
// A delivery that was never attempted has its whole retry window after Resume. For any other
// delivery the window goes on. If it ends during the pause, the delivery is attempted once more
// after Resume. The same holds while a destination is disabled or unknown.
//
// A pause is a setting of the store. It applies to all nodes that share the store, within about a
// second, and survives restarts. After an error of the store the destination may be paused or not.
// The error is ErrUnknownDestination for a destination that Forward would refuse.
func (f *Forwarder) Pause(ctx context.Context, destination string) error {
	err := f.destinations.known(destination)
	if err == nil {
		_, err = f.setPause(ctx, destination, "")
	}
	if err != nil {
		return fmt.Errorf("webhook: pausing: %w", err)
	}
	return nil
}

// Resume ends the pause of a destination, if there is one, whichever node began it. It also enables
// a destination that the forwarder has disabled; see Config.DisableAfter.
func (f *Forwarder) Resume(ctx context.Context, destination string) error {
	err := f.destinations.known(destination)
	if err == nil {
		err = f.clearPause(ctx, destination)
	}
	if err != nil {
		return fmt.Errorf("webhook: resuming: %w", err)
	}
	return nil
}

// pausePrefix, followed by the id of a destination, is the name of the setting that pauses it.
const pausePrefix = "pause/"

// A pause is the value of the setting that pauses a destination, as JSON.
type pause struct {
	Since time.Time `json:"since"`
	// Reason is why the forwarder has disabled the destination, "" if Pause was called.
	Reason Reason `json:"reason,omitempty"`
}

// setPause pauses a destination in the store, unless it is paused already, and then calls
// learnPauses. stored reports whether this call has stored the pause, even if learnPauses fails.
func (e *engine) setPause(ctx context.Context, destination string, why Reason) (stored bool, err error) {
	value, err := json.Marshal(pause{Since: e.now().UTC(), Reason: why})
	if err == nil {
		_, err = e.config.Store.Set(ctx, Setting{Name: pausePrefix + destination, Value: value})
	}
	stored = err == nil
	if stored || errors.Is(err, ErrConflict) { // on a conflict, another call has paused it
		err = e.learnPauses(ctx)
	}
	return stored, err
}

// clearPause removes the pause of a destination from the store, and then calls learnPauses.
func (e *engine) clearPause(ctx context.Context, destination string) error {
	name := pausePrefix + destination
	for s, err := range e.config.Store.Settings(ctx, name) {
		if err == nil && s.Name == name {
			if _, err = e.config.Store.Set(ctx, Setting{Name: name, Version: s.Version}); err == nil {
				e.enabled(destination, s.Value)
			}
		}
		if err != nil && !errors.Is(err, ErrConflict) { // on a conflict, another call has changed the pause
			return err
		}
	}
	return e.learnPauses(ctx)
}

// learnPauses reads the pauses from the store, and passes them to the scheduler. After an error the
// scheduler keeps the pauses that it has.
func (e *engine) learnPauses(ctx context.Context) error {
	reading := e.readings.Add(1)
	paused := make(map[string]schedule.Pause)
	for s, err := range e.config.Store.Settings(ctx, pausePrefix) {
		if err != nil {
			return err
		}
		var p pause
		if err := json.Unmarshal(s.Value, &p); err != nil {
			return fmt.Errorf("webhook: setting %q: %w", s.Name, err)
		}
		id := strings.TrimPrefix(s.Name, pausePrefix)
		paused[id] = schedule.Pause{Since: p.Since, Reason: string(p.Reason), Bury: p.Reason != "" && e.config.BuryDisabled}
	}
	e.returnAll(e.schedule.SetPaused(paused, reading))
	return nil
}

// A Hold says why the deliveries of a destination wait.
type Hold string

// The holds.
const (
	// HoldPaused: Pause was called.
	HoldPaused Hold = "paused"
	// HoldDisabled: Destination.Disabled is set, or the forwarder has disabled the destination:
	// then Held.Reason is not empty, and Resume enables the destination.
	HoldDisabled Hold = "disabled"
	// HoldUnknown: there is no such destination.
	HoldUnknown Hold = "unknown"
	// HoldInvalid: Lookup returned a destination that is not valid.
	HoldInvalid Hold = "invalid"
	// HoldLookup: Lookup fails.
	HoldLookup Hold = "lookup"
	// HoldFailing: the destination only fails, and is probed; see Config.MaxConcurrent.
	HoldFailing Hold = "failing"
)

// Held describes a destination whose deliveries wait although they are due.
type Held struct {
	Destination string
	Hold        Hold
	Since       time.Time // when the hold began, zero if that is not known
	// Until is when the forwarder checks next whether the hold is over, zero for HoldPaused. For
	// HoldFailing the check is an attempt, so it also waits for a delivery that is due.
	Until time.Time
	// Reason is why the latest attempt failed, for HoldFailing, and for HoldDisabled if the
	// forwarder has disabled the destination.
	Reason Reason
}

// Held returns the destinations that are held now, in the order of their ids. It leaves out a
// destination of which no delivery was due for some minutes, unless it is paused or disabled.
func (f *Forwarder) Held() []Held {
	var held []Held
	for _, h := range f.schedule.Held() {
		now := Held{Destination: h.Destination, Hold: Hold(h.Why), Since: h.Since, Until: h.Until, Reason: Reason(h.Reason)}
		switch {
		case h.Paused && h.Reason != "":
			now.Hold = HoldDisabled
		case h.Paused:
			now.Hold = HoldPaused
		case h.Why == "":
			now.Hold = HoldFailing
		}
		held = append(held, now)
	}
	return held
}
