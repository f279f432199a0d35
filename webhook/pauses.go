package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hookferry/analytics/webhook/internal/schedule"
	"github.com/hookferry/analytics/webhook/store"
)

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
	schedule *scheduler
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
