package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"
)

// Disabled says that the forwarder has disabled a destination; see Config.DisableAfter.
type Disabled struct {
	// Destination is its id.
	Destination string
	// Reason is why its latest attempt failed, and Status the answer of an endpoint to it, 0
	// if there was none.
	Reason Reason
	Status int
	// Since is when its attempts began to fail.
	Since time.Time
}

// A DisableObserver is an Observer that is told of destinations which the forwarder disables,
// each once by the node that does so.
type DisableObserver interface {
	Disabled(Disabled)
}

// Enabled says that Resume has enabled a destination which the forwarder had disabled.
type Enabled struct {
	// Destination is its id.
	Destination string
	// Reason is why it was disabled, and Since when.
	Reason Reason
	Since  time.Time
}

// An EnableObserver is an Observer that is told of destinations which were disabled, and which
// Resume enables, each once by the node whose Resume does so. It is not told of a pause that
// ends. It is called before Resume returns.
type EnableObserver interface {
	Enabled(Enabled)
}

// enabled tells that the setting of a destination was removed, if it said that the forwarder
// had disabled it.
func (e *engine) enabled(destination string, setting []byte) {
	var was pause
	if err := json.Unmarshal(setting, &was); err != nil || was.Reason == "" {
		return
	}
	e.config.Logger.Info("webhook: destination enabled, its deliveries are attempted again",
		"destination", destination, "reason", string(was.Reason))
	if e.observed != nil {
		e.observed.enabled(Enabled{Destination: destination, Reason: was.Reason, Since: was.Since})
	}
}

// outlived disables the destination of l if s, which failed, is the end of its time.
func (w *worker) outlived(l *lane, s *Settlement) {
	now := w.now()
	gone := w.config.DisableGone && s.Verdict == Bury && len(w.open) > 0
	for i := range w.open {
		gone = gone && w.results[i].attempt.Status == http.StatusGone
	}
	since := now
	if w.config.DisableAfter > 0 {
		since = w.accounts.of(l).failsSince(now)
	}
	if !gone && (w.config.DisableAfter == 0 || now.Sub(since) < w.config.DisableAfter) {
		return
	}
	d := Disabled{Destination: l.ID, Reason: lastReason(&s.Delivery), Since: since.UTC()}
	if len(w.open) > 0 {
		d.Status = w.results[len(w.open)-1].attempt.Status
	}
	if _, busy := w.disabling.LoadOrStore(l.ID, true); busy {
		return
	}
	// The store may take its time. Shutdown waits for it as for a request.
	w.workers.Go(func() {
		defer w.disabling.Delete(l.ID)
		w.disable(d, l)
	})
}

// disable stores that a destination is disabled, and tells of it. After an error the next
// attempt that fails does so again.
func (e *engine) disable(d Disabled, l *lane) {
	ctx, cancel := context.WithTimeout(e.attempts, e.config.Timeout)
	defer cancel()
	value, err := json.Marshal(pause{Since: e.now().UTC(), Reason: d.Reason})
	if err == nil {
		_, err = e.config.Store.Set(ctx, Setting{Name: pausePrefix + d.Destination, Value: value})
	}
	told := err == nil
	if told || errors.Is(err, ErrConflict) { // paused, or disabled by another node
		e.accounts.of(l).answered()
		err = e.pauses.learn(ctx)
	}
	if err != nil {
		e.config.Logger.Error("webhook: could not disable a destination that fails; it is attempted on", "destination", d.Destination, "error", err)
	}
	if !told {
		return
	}
	text := "webhook: destination disabled, its deliveries wait until it is resumed"
	if e.config.BuryDisabled {
		text = "webhook: destination disabled, its deliveries become dead letters until it is resumed"
		// What waits for a later time, too. After an error it is buried at that time.
		_, _, _ = e.config.Store.Change(ctx, WaitingFilter{Destination: d.Destination}, DueNow)
	}
	e.config.Logger.Warn(text, "destination", d.Destination, "reason", string(d.Reason), "status", d.Status, "since", d.Since)
	if e.observed != nil {
		e.observed.disabled(d)
	}
}

// failsSince notes that an attempt failed at now, and returns since when all have failed.
func (a *account) failsSince(now time.Time) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.fails.IsZero() {
		a.fails = now
	}
	return a.fails
}

// answered notes that the destination does not fail, or is to have its whole time again.
func (a *account) answered() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fails = time.Time{}
}
