package webhook

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hookferry/analytics/webhook/internal/schedule"
	"github.com/hookferry/analytics/webhook/store"
)

// Pause keeps the deliveries of a destination in the store until Resume. Attempts in flight go on.
//
// A delivery that was never attempted has its whole retry window after Resume. For any other
// delivery the window goes on. If it ends during the pause, the delivery is attempted once more
// after Resume, even if the forwarder restarts before that. The same holds while a destination is
// disabled or unknown, unless the forwarder restarts after that and before the attempt.
//
// A pause is a setting of the store. It applies to all nodes of the store, after Config.Poll at the
// latest, and survives restarts. After an error of the store the destination may be paused or not.
// The error is ErrUnknownDestination for a destination that Forward would refuse.
func (f *Forwarder) Pause(ctx context.Context, destination string) error {
	if err := f.directory.known(destination); err != nil {
		return err
	}
	_, err := f.pauses.set(ctx, Disabled{Destination: destination, Since: f.config.now().UTC()})
	return err
}

// Resume ends the pause of a destination, if there is one, whichever node began it. It also enables
// a destination that the forwarder has disabled; see Config.DisableAfter.
func (f *Forwarder) Resume(ctx context.Context, destination string) error {
	if err := f.directory.known(destination); err != nil {
		return err
	}
	s, p, err := f.pauses.find(ctx, destination)
	if err != nil {
		return err
	}
	if s.Version != 0 && p.Resumed.IsZero() {
		p.Resumed = f.config.now().UTC()
		if s.Value, err = json.Marshal(p); err == nil {
			_, err = f.config.Store.Set(ctx, s)
		}
		if err == nil {
			f.enabled(p.Disabled)
		} else if !errors.Is(err, store.ErrConflict) { // on a conflict, another call has changed the pause
			return err
		}
	}
	if err := f.pauses.learn(ctx); err != nil {
		return err
	}
	f.schedule.Recheck(destination)
	return nil
}

// Recheck says that the settings of destinations have changed. A destination that is disabled,
// unknown, invalid or failing waits no longer for its next look-up or probe: a delivery of it is
// attempted at once. Recheck does not end a pause.
func (f *Forwarder) Recheck(destinations ...string) {
	for _, id := range destinations {
		f.schedule.Recheck(id)
	}
}

// pausePrefix and the id of a destination are the name of the setting that pauses it.
const pausePrefix = "pause/"

// A pause is the value of the setting that pauses a destination, as JSON. It has no Reason if Pause
// was called. Resume sets Resumed. The setting stays for resumedFor, because a delivery whose retry
// window ended in the pause is attempted once more, even if the forwarder restarts before that.
type pause struct {
	Disabled
	Resumed time.Time `json:"resumed,omitzero"`
}

// pauses reads and changes the pauses in the store, and tells the scheduler of them.
type pauses struct {
	config   *Config
	schedule *schedule.Scheduler
	settler  *settler
	readings atomic.Uint64 // counts the calls of learn
}

const resumedFor = 7 * 24 * time.Hour

// find returns the setting of a destination's pause, with the Version zero if there is none.
func (ps *pauses) find(ctx context.Context, destination string) (store.Setting, pause, error) {
	name := pausePrefix + destination
	for s, err := range ps.config.Store.Settings(ctx, name) {
		if err != nil {
			return s, pause{}, err
		}
		if s.Name == name {
			p, err := readPause(s)
			return s, p, err
		}
	}
	return store.Setting{Name: name}, pause{}, nil
}

// set pauses a destination in the store, unless it is paused already, and calls learn.
// stored reports whether this call has stored the pause, even if learn fails.
func (ps *pauses) set(ctx context.Context, d Disabled) (stored bool, err error) {
	s, p, err := ps.find(ctx, d.Destination)
	if err == nil && (s.Version == 0 || !p.Resumed.IsZero()) {
		if s.Value, err = json.Marshal(pause{Disabled: d}); err == nil {
			_, err = ps.config.Store.Set(ctx, s)
		}
		stored = err == nil
	}
	if err == nil || errors.Is(err, store.ErrConflict) { // on a conflict, another call has paused it
		err = ps.learn(ctx)
	}
	return stored, err
}

// learn passes the pauses in the store to the scheduler, which keeps its own after an error.
func (ps *pauses) learn(ctx context.Context) error {
	reading := ps.readings.Add(1)
	paused := make(map[string]schedule.Pause)
	for s, err := range ps.config.Store.Settings(ctx, pausePrefix) {
		if err != nil {
			return err
		}
		p, err := readPause(s)
		if err != nil {
			return err
		}
		if !p.Resumed.IsZero() {
			if ps.config.now().Sub(p.Resumed) > resumedFor {
				_, _ = ps.config.Store.Set(ctx, store.Setting{Name: s.Name, Version: s.Version}) // or another node removes it
				continue
			}
			paused[p.Destination] = schedule.Pause{Since: p.Since, Resumed: p.Resumed}
			continue
		}
		hold := HoldPaused
		if p.Reason != "" {
			hold = HoldDisabled
		}
		paused[p.Destination] = schedule.Pause{
			Since: p.Since, Why: string(hold), Reason: string(p.Reason), Bury: hold == HoldDisabled && ps.config.BuryDisabled,
		}
	}
	ps.settler.returnAll(ps.schedule.SetPaused(paused, reading))
	return nil
}

func readPause(s store.Setting) (p pause, err error) {
	if err := json.Unmarshal(s.Value, &p); err != nil {
		return p, fmt.Errorf("webhook: setting %q: %w", s.Name, err)
	}
	p.Destination = strings.TrimPrefix(s.Name, pausePrefix)
	return p, nil
}

// A Hold says why the deliveries of a destination wait.
type Hold string

const (
	HoldPaused  Hold = "paused"  // Pause was called
	HoldUnknown Hold = "unknown" // there is no such destination
	HoldInvalid Hold = "invalid" // Lookup returned a destination that is not valid
	HoldLookup  Hold = "lookup"  // Lookup fails
	HoldFailing Hold = "failing" // the destination only fails, and is probed; see Config.MaxConcurrent
	// HoldDisabled: Destination.Disabled is set, or the forwarder has disabled the destination: then
	// Held.Reason is not empty, and Resume enables the destination.
	HoldDisabled Hold = "disabled"
)

// Held describes a destination whose deliveries wait although they are due.
type Held struct {
	Destination string
	Hold        Hold
	Since       time.Time // when the hold began, zero if that is not known
	// Until is when the forwarder checks next whether the hold is over, zero for HoldPaused. For
	// HoldFailing the check is an attempt: Until is zero while one is in flight, or if nothing waits.
	Until  time.Time
	Reason Reason // why the latest attempt failed, for HoldFailing or if the forwarder has disabled it
}

// Held returns the destinations that are held now, in the order of their ids. It leaves out one of
// which no delivery was due for some minutes, unless it is paused or disabled.
func (f *Forwarder) Held() []Held {
	var held []Held
	for _, h := range f.schedule.Held() {
		hold := cmp.Or(Hold(h.Why), HoldFailing)
		held = append(held, Held{h.Destination, hold, h.Since, h.Until, Reason(h.Reason)})
	}
	return held
}

// Disabled describes a destination that the forwarder has disabled; see Config.DisableAfter.
type Disabled struct {
	Destination  string    `json:"-"`
	Since        time.Time `json:"since"`                 // when it was disabled
	FailingSince time.Time `json:"failingSince,omitzero"` // when its attempts began to fail
	Reason       Reason    `json:"reason,omitempty"`      // why the latest attempt failed
	Status       int       `json:"status,omitempty"`      // the HTTP status of that attempt, 0 if there was none
}

// A DisableObserver is an Observer that is told when the forwarder disables a destination, and when
// Resume enables it again, before Resume returns. Each call is made once, on the node that does so.
type DisableObserver interface {
	Disabled(Disabled)
	Enabled(Disabled)
}

// enabled logs that Resume has enabled a destination, and tells the observer, unless Pause was
// called for it.
func (f *Forwarder) enabled(was Disabled) {
	if was.Reason == "" {
		return
	}
	f.config.Logger.Info("webhook: destination enabled; its deliveries are attempted again",
		"destination", was.Destination, "reason", string(was.Reason))
	if o, ok := f.config.Observer.(DisableObserver); ok {
		f.recorder.tell(func(Observer) { o.Enabled(was) })
	}
}

// disableIfDue disables the destination of l if Config.DisableGone or Config.DisableAfter says so
// after a failed attempt with these results. s is the settlement of the attempt. If the store
// fails, the next failed attempt tries again.
func (w *worker) disableIfDue(l *lane, results []result, s *store.Settlement) {
	now := w.config.now().UTC()
	d := Disabled{Destination: l.ID, Since: now, FailingSince: now, Reason: lastReason(&s.Delivery), Status: results[len(results)-1].attempt.Status}
	if w.config.DisableAfter > 0 {
		d.FailingSince = w.recorder.accounts.of(l.ID).failingSince(now)
	}
	gone := w.config.DisableGone && s.Verdict == store.Bury
	for i := range results {
		gone = gone && results[i].attempt.Status == http.StatusGone
	}
	if !gone && (w.config.DisableAfter == 0 || now.Sub(d.FailingSince) < w.config.DisableAfter) {
		return
	}
	ctx, cancel := context.WithTimeout(w.attempts, w.config.Timeout)
	defer cancel()
	stored, err := w.pauses.set(ctx, d)
	if err != nil {
		w.config.Logger.Error("webhook: could not disable a destination that fails; its attempts go on", "destination", l.ID, "error", err)
	} else {
		w.recorder.countFor(l.ID, func(a *account) { a.failing = time.Time{} })
	}
	if !stored { // the destination was paused, or another node has disabled it
		return
	}
	text := "webhook: destination disabled; its deliveries wait until it is resumed"
	if w.config.BuryDisabled {
		text = "webhook: destination disabled; its deliveries become dead letters until it is resumed"
		// Make all deliveries due, so that they are buried at once, and not when they become due.
		_, _, _ = w.config.Store.Change(ctx, WaitingFilter{Destination: l.ID}, DueNow)
	}
	w.config.Logger.Warn(text, "destination", l.ID, "reason", string(d.Reason), "status", d.Status, "since", d.FailingSince)
	if o, ok := w.config.Observer.(DisableObserver); ok {
		w.recorder.tell(func(Observer) { o.Disabled(d) })
	}
}
