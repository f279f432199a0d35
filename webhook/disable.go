package webhook

import (
	"context"
	"encoding/json"
	"net/http"
	"time"
)

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
func (e *engine) enabled(destination string, setting []byte) {
	var was pause
	if err := json.Unmarshal(setting, &was); err != nil || was.Reason == "" {
		return
	}
	e.config.Logger.Info("webhook: destination enabled; its deliveries are attempted again",
		"destination", destination, "reason", string(was.Reason))
	e.tell(func(o Observer) {
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
func (e *engine) disable(d Disabled) {
	ctx, cancel := context.WithTimeout(e.attempts, e.config.Timeout)
	defer cancel()
	stored, err := e.setPause(ctx, d.Destination, d.Reason)
	if err != nil {
		e.config.Logger.Error("webhook: could not disable a destination that fails; its attempts go on", "destination", d.Destination, "error", err)
	} else {
		e.accounts.of(d.Destination).forgive()
	}
	if !stored { // the destination was paused, or another node has disabled it
		return
	}
	text := "webhook: destination disabled; its deliveries wait until it is resumed"
	if e.config.BuryDisabled {
		text = "webhook: destination disabled; its deliveries become dead letters until it is resumed"
		// Make the deliveries that wait for a later time due now, so that they are buried at once.
		// If that fails, each delivery is buried when it becomes due.
		_, _, _ = e.config.Store.Change(ctx, WaitingFilter{Destination: d.Destination}, DueNow)
	}
	e.config.Logger.Warn(text, "destination", d.Destination, "reason", string(d.Reason), "status", d.Status, "since", d.Since)
	e.tell(func(o Observer) {
		if o, ok := o.(DisableObserver); ok {
			o.Disabled(d)
		}
	})
}
