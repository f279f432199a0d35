package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
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
	Since  time.Time `json:"since"`
	Reason Reason    `json:"reason,omitempty"` // why the forwarder has disabled the destination, "" if Pause was called
}

// setPause pauses a destination in the store, unless it is paused already, and then calls
// learnPauses. stored reports whether this call has stored the pause, even if learnPauses fails.
func (f *Forwarder) setPause(ctx context.Context, destination string, why Reason) (stored bool, err error) {
	value, err := json.Marshal(pause{Since: f.now().UTC(), Reason: why})
	if err == nil {
		_, err = f.config.Store.Set(ctx, Setting{Name: pausePrefix + destination, Value: value})
	}
	stored = err == nil
	if stored || errors.Is(err, ErrConflict) { // on a conflict, another call has paused it
		err = f.learnPauses(ctx)
	}
	return stored, err
}

// clearPause removes the pause of a destination from the store, and then calls learnPauses.
func (f *Forwarder) clearPause(ctx context.Context, destination string) error {
	name := pausePrefix + destination
	for s, err := range f.config.Store.Settings(ctx, name) {
		if err == nil && s.Name == name {
			if _, err = f.config.Store.Set(ctx, Setting{Name: name, Version: s.Version}); err == nil {
				f.enabled(destination, s.Value)
			}
		}
		if err != nil && !errors.Is(err, ErrConflict) { // on a conflict, another call has changed the pause
			return err
		}
	}
	return f.learnPauses(ctx)
}

// learnPauses reads the pauses from the store, and passes them to the scheduler. After an error the
// scheduler keeps the pauses that it has.
func (f *Forwarder) learnPauses(ctx context.Context) error {
	reading := f.readings.Add(1)
	paused := make(map[string]schedule.Pause)
	for s, err := range f.config.Store.Settings(ctx, pausePrefix) {
		if err != nil {
			return err
		}
		var p pause
		if err := json.Unmarshal(s.Value, &p); err != nil {
			return fmt.Errorf("webhook: setting %q: %w", s.Name, err)
		}
		id := strings.TrimPrefix(s.Name, pausePrefix)
		paused[id] = schedule.Pause{Since: p.Since, Reason: string(p.Reason), Bury: p.Reason != "" && f.config.BuryDisabled}
	}
	f.returnAll(f.schedule.SetPaused(paused, reading))
	return nil
}

// A Hold says why the deliveries of a destination wait.
type Hold string

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

// Disabled describes a destination that the forwarder has disabled; see Config.DisableAfter.
type Disabled struct {
	Destination string
	Reason      Reason    // why the latest attempt failed
	Status      int       // its HTTP status, 0 if there was none
	Since       time.Time // when the attempts of the destination began to fail
}

// A DisableObserver is an Observer that is told when the forwarder disables a destination. It is
// called once, on the node that disables the destination.
type DisableObserver interface {
	Disabled(Disabled)
}

// Enabled describes a destination that the forwarder had disabled and Resume has enabled.
type Enabled struct {
	Destination string
	Reason      Reason    // why it was disabled
	Since       time.Time // when it was disabled
}

// An EnableObserver is an Observer that is told when Resume enables a destination that the
// forwarder had disabled. It is called once, on the node of the Resume, before Resume returns.
type EnableObserver interface {
	Enabled(Enabled)
}

// enabled logs that Resume has enabled a destination, and tells the observer, unless Pause stored
// the setting that Resume has removed. The argument setting is its value.
func (f *Forwarder) enabled(destination string, setting []byte) {
	var was pause
	if err := json.Unmarshal(setting, &was); err != nil || was.Reason == "" {
		return
	}
	f.config.Logger.Info("webhook: destination enabled; its deliveries are attempted again",
		"destination", destination, "reason", string(was.Reason))
	f.tell(func(o Observer) {
		if o, ok := o.(EnableObserver); ok {
			o.Enabled(Enabled{Destination: destination, Reason: was.Reason, Since: was.Since})
		}
	})
}

// disableIfDue disables the destination of l if Config.DisableGone or Config.DisableAfter says so
// after a failed attempt, in which a request was made. s is the settlement of the attempt.
func (w *worker) disableIfDue(l *lane, s *Settlement) {
	now := w.now()
	gone := w.config.DisableGone && s.Verdict == Bury
	for i := range w.open {
		gone = gone && w.results[i].attempt.Status == http.StatusGone
	}
	since := now
	if w.config.DisableAfter > 0 {
		since = w.accounts.of(l.ID).failingSince(now)
	}
	if !gone && (w.config.DisableAfter == 0 || now.Sub(since) < w.config.DisableAfter) {
		return
	}
	last := &w.results[len(w.open)-1].attempt
	d := Disabled{Destination: l.ID, Reason: lastReason(&s.Delivery), Status: last.Status, Since: since.UTC()}
	if !l.disabling.CompareAndSwap(false, true) {
		return
	}
	// The store may be slow. Shutdown waits for this goroutine as for a request.
	w.workers.Go(func() {
		defer l.disabling.Store(false)
		w.disable(d)
	})
}

// disable stores that a destination is disabled, logs it and tells the observer. If the store
// fails, the next failed attempt of the destination tries again.
func (f *Forwarder) disable(d Disabled) {
	ctx, cancel := context.WithTimeout(f.attempts, f.config.Timeout)
	defer cancel()
	stored, err := f.setPause(ctx, d.Destination, d.Reason)
	if err != nil {
		f.config.Logger.Error("webhook: could not disable a destination that fails; its attempts go on", "destination", d.Destination, "error", err)
	} else {
		f.accounts.of(d.Destination).forgive()
	}
	if !stored { // the destination was paused, or another node has disabled it
		return
	}
	text := "webhook: destination disabled; its deliveries wait until it is resumed"
	if f.config.BuryDisabled {
		text = "webhook: destination disabled; its deliveries become dead letters until it is resumed"
		// Make the deliveries that wait for a later time due now, so that they are buried at once.
		// If that fails, each delivery is buried when it becomes due.
		_, _, _ = f.config.Store.Change(ctx, WaitingFilter{Destination: d.Destination}, DueNow)
	}
	f.config.Logger.Warn(text, "destination", d.Destination, "reason", string(d.Reason), "status", d.Status, "since", d.Since)
	f.tell(func(o Observer) {
		if o, ok := o.(DisableObserver); ok {
			o.Disabled(d)
		}
	})
}
