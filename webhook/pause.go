package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hookferry/analytics/webhook/internal/schedule"
)

// Pause keeps the deliveries of a destination until Resume. Attempts in flight
// end as they would have. What was not attempted before has its whole window
// after; the window of what was goes on, but a delivery whose window ends during
// the pause is attempted once more after it before it is given up. The same
// holds while a destination is disabled or unknown.
//
// A pause is a setting of the store: it holds for all nodes that share the store, within
// about a second, and until Resume, whatever is restarted meanwhile. After an error of the
// store it holds only if the store has kept it, as when no more than its answer was lost.
//
// Pause returns ErrUnknownDestination for what Forward would not take. To pause
// twice is to pause.
func (f *Forwarder) Pause(ctx context.Context, destination string) error {
	if err := f.destinations.known(destination); err != nil {
		return fmt.Errorf("webhook: pausing: %w", err)
	}
	since, err := json.Marshal(pause{Since: f.now().UTC()})
	if err == nil {
		_, err = f.config.Store.Set(ctx, Setting{Name: pausePrefix + destination, Value: since})
	}
	if err == nil || errors.Is(err, ErrConflict) { // somebody has paused it
		err = f.pauses.learn(ctx)
	}
	if err != nil {
		return fmt.Errorf("webhook: pausing: %w", err)
	}
	return nil
}

// Resume ends a pause, if there is one, whichever node began it, and enables what the
// forwarder has disabled; see Config.DisableAfter. Its errors are those of
// Pause.
func (f *Forwarder) Resume(ctx context.Context, destination string) error {
	if err := f.destinations.known(destination); err != nil {
		return fmt.Errorf("webhook: resuming: %w", err)
	}
	name := pausePrefix + destination
	for s, err := range f.config.Store.Settings(ctx, name) {
		if err == nil && s.Name == name {
			if _, err = f.config.Store.Set(ctx, Setting{Name: name, Version: s.Version}); err == nil {
				f.enabled(destination, s.Value)
			}
		}
		if err != nil && !errors.Is(err, ErrConflict) { // somebody has resumed it
			return fmt.Errorf("webhook: resuming: %w", err)
		}
	}
	if err := f.pauses.learn(ctx); err != nil {
		return fmt.Errorf("webhook: resuming: %w", err)
	}
	return nil
}

// pausePrefix and a destination are the name of the setting that says it is paused.
const pausePrefix = "pause/"

// A pause is the value of that setting.
type pause struct {
	Since time.Time `json:"since"`
	// Reason is why the forwarder has disabled it, "" if Pause was called.
	Reason Reason `json:"reason,omitempty"`
}

// pauses keeps the scheduler's pauses those of the store.
type pauses struct {
	store    Store
	schedule *schedule.Scheduler
	giveBack func([]schedule.Item) // what the scheduler had ready
	logger   *slog.Logger
	readings atomic.Uint64                    // counts the calls of read
	bury     bool                             // Config.BuryDisabled
	disabled atomic.Pointer[map[string]pause] // those of destinations that were disabled, by id
}

// disabledNow returns why a destination is disabled, and whether it is.
func (p *pauses) disabledNow(destination string) (pause, bool) {
	if all := p.disabled.Load(); all != nil {
		why, ok := (*all)[destination]
		return why, ok
	}
	return pause{}, false
}

// buries reports whether what is for a destination becomes a dead letter, as it is disabled.
func (p *pauses) buries(destination string) bool {
	if !p.bury {
		return false
	}
	_, disabled := p.disabledNow(destination)
	return disabled
}

// read returns the pauses that the store holds, by destination, and since when, and the
// destinations that were disabled.
func (p *pauses) read(ctx context.Context) (paused map[string]time.Time, disabled map[string]pause, err error) {
	paused, disabled = make(map[string]time.Time), make(map[string]pause)
	for s, err := range p.store.Settings(ctx, pausePrefix) {
		if err != nil {
			return nil, nil, err
		}
		var v pause
		if err := json.Unmarshal(s.Value, &v); err != nil {
			return nil, nil, fmt.Errorf("webhook: setting %q: %w", s.Name, err)
		}
		id := strings.TrimPrefix(s.Name, pausePrefix)
		if v.Reason != "" {
			disabled[id] = v
		}
		if v.Reason == "" || !p.bury { // else it is taken, to be buried
			paused[id] = v.Since
		}
	}
	return paused, disabled, nil
}

// pausesEvery is how often the store is asked what is paused.
const pausesEvery = time.Second

// learn makes the pauses those of the store. An error changes nothing.
func (p *pauses) learn(ctx context.Context) error {
	reading := p.readings.Add(1)
	paused, disabled, err := p.read(ctx)
	if err != nil {
		return err
	}
	if reading == p.readings.Load() { // else a later call knows better
		p.disabled.Store(&disabled)
	}
	p.giveBack(p.schedule.SetPaused(paused, reading))
	return nil
}

// first waits until the pauses of the store are known, so that nothing is
// attempted that is paused.
func (p *pauses) first(ctx context.Context) error {
	var trouble outage
	for {
		err := p.learn(ctx)
		switch {
		case err == nil:
			if trouble.over() {
				p.logger.Info("webhook: the store works again")
			}
			return nil
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, ErrClosed):
			return fmt.Errorf("webhook: asking what is paused: %w", err)
		}
		if trouble.failed() {
			p.logger.Error("webhook: the store fails, nothing is delivered", "error", err)
		}
		trouble.wait(ctx)
	}
}

// follow follows the pauses of the store until ctx is done. While the store
// fails they stay as they are; fetching tells of that.
func (p *pauses) follow(ctx context.Context) {
	t := time.NewTicker(pausesEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		_ = p.learn(ctx)
	}
}

// A Hold says why the deliveries of a destination wait.
type Hold string

// The holds.
const (
	// HoldPaused: Pause was called.
	HoldPaused Hold = "paused"
	// HoldDisabled: Destination.Disabled is set, or the forwarder has disabled it. Then
	// Reason is not empty, and Resume enables it.
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
	// Reason is why the latest attempt failed, for HoldFailing, and for HoldDisabled if the
	// forwarder has disabled it.
	Reason Reason
}

// Held returns the destinations that are held now, by id. One that nothing has
// been due for within a minute is left out, unless it is paused or disabled.
func (f *Forwarder) Held() []Held {
	var held []Held
	for _, h := range f.schedule.Held() {
		if _, disabled := f.pauses.disabledNow(h.Destination); disabled {
			continue
		}
		now := Held{Destination: h.Destination, Hold: Hold(h.Why), Since: h.Since, Until: h.Until, Reason: Reason(h.Reason)}
		switch {
		case h.Paused:
			now.Hold = HoldPaused
		case h.Why == "":
			now.Hold = HoldFailing
		}
		held = append(held, now)
	}
	if all := f.pauses.disabled.Load(); all != nil {
		for id, why := range *all {
			held = append(held, Held{Destination: id, Hold: HoldDisabled, Since: why.Since, Reason: why.Reason})
		}
	}
	slices.SortFunc(held, func(a, b Held) int { return strings.Compare(a.Destination, b.Destination) })
	return held
}
