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

// Pause keeps the deliveries of a destination in the store until Resume. Attempts in flight end as
// they would have. Deliveries that were never attempted have their whole retry window afterwards.
// For others the window goes on. A delivery whose window ends during the pause is attempted once
// more after it. The same holds while a destination is disabled or unknown.
//
// A pause is a setting of the store. It holds for all nodes that share the store, within about a
// second, and across restarts, until Resume. After an error of the store the pause may hold or not,
// for example if only the answer was lost.
//
// Pause returns ErrUnknownDestination for a destination that Forward would refuse. A second Pause
// changes nothing.
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
// a destination that the forwarder has disabled; see Config.DisableAfter. Its errors are those of
// Pause.
func (f *Forwarder) Resume(ctx context.Context, destination string) error {
	err := f.destinations.known(destination)
	if err == nil {
		err = f.clearPause(ctx, destination)
	}
	if err == nil {
		err = f.learnPauses(ctx)
	}
	if err != nil {
		return fmt.Errorf("webhook: resuming: %w", err)
	}
	return nil
}

// pausePrefix and the id of a destination are the name of the setting that pauses it.
const pausePrefix = "pause/"

// A pause is the value of that setting.
type pause struct {
	Since time.Time `json:"since"`
	// Reason is why the forwarder has disabled the destination, "" if it was paused by a call
	// of Pause.
	Reason Reason `json:"reason,omitempty"`
}

// setPause stores a pause, unless there is one, and then reads the pauses of the store. stored says
// that this call has stored the pause. It may be true although there is an error.
func (e *engine) setPause(ctx context.Context, destination string, why Reason) (stored bool, err error) {
	value, err := json.Marshal(pause{Since: e.now().UTC(), Reason: why})
	if err == nil {
		_, err = e.config.Store.Set(ctx, Setting{Name: pausePrefix + destination, Value: value})
	}
	stored = err == nil
	if stored || errors.Is(err, ErrConflict) { // another call has paused it
		err = e.learnPauses(ctx)
	}
	return stored, err
}

// clearPause removes the pause of a destination from the store.
func (e *engine) clearPause(ctx context.Context, destination string) error {
	name := pausePrefix + destination
	for s, err := range e.config.Store.Settings(ctx, name) {
		if err == nil && s.Name == name {
			if _, err = e.config.Store.Set(ctx, Setting{Name: name, Version: s.Version}); err == nil {
				e.enabled(destination, s.Value)
			}
		}
		if err != nil && !errors.Is(err, ErrConflict) { // another call has resumed it
			return err
		}
	}
	return nil
}

// learnPauses gives the pauses of the store to the scheduler. An error changes nothing.
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

// pausesEvery is how often a node asks the store for the pauses.
const pausesEvery = time.Second

// followPauses keeps the pauses of the scheduler those of the store until ctx is done. While the
// store fails they stay as they are; the fetcher logs that the store fails.
func (e *engine) followPauses(ctx context.Context) {
	t := time.NewTicker(pausesEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			_ = e.learnPauses(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// A Hold says why the deliveries of a destination wait.
type Hold string

// The holds.
const (
	// HoldPaused: Pause was called.
	HoldPaused Hold = "paused"
	// HoldDisabled: Destination.Disabled is set, or the forwarder has disabled the
	// destination. In the latter case Reason is not empty, and Resume enables it.
	HoldDisabled Hold = "disabled"
	// HoldUnknown: there is no such destination.
	HoldUnknown Hold = "unknown"
	// HoldInvalid: Lookup returned a destination that is not valid.
	HoldInvalid Hold = "invalid"
	// HoldLookup: Lookup fails.
	HoldLookup Hold = "lookup"
	// HoldFailing: the destination failed too often in a row. It is probed at intervals.
	// Deliveries that were attempted before keep their schedule.
	HoldFailing Hold = "failing"
)

// A Held destination is one whose deliveries wait although they are due.
type Held struct {
	// Destination is its id.
	Destination string
	// Hold is why.
	Hold Hold
	// Since is when the hold began. It is zero if that was before this process and is not
	// known.
	Since time.Time
	// Until is when the forwarder looks next whether the hold is over. For HoldFailing it
	// looks once a delivery is due after that time. Until is zero for HoldPaused.
	Until time.Time
	// Reason is why the latest attempt failed, for HoldFailing, and for HoldDisabled if the
	// forwarder has disabled the destination.
	Reason Reason
}

// Held returns the destinations that are held now, in the order of their ids. It leaves out a
// destination that nothing has been due for within some minutes, unless it is paused or disabled.
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
