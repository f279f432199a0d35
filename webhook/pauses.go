package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hookferry/analytics/webhook/internal/schedule"
	"github.com/hookferry/analytics/webhook/store"
)

// pauseFolder has the document that pauses a destination, under the destination's id.
const pauseFolder = "pause"

// A pause is the value of the document that pauses a destination, as JSON. It has no Reason if Pause
// was called. Resume sets Resumed. The document stays for resumedFor, because a delivery whose retry
// window ended in the pause is attempted once more, even if the forwarder restarts before that.
type pause struct {
	Disabled
	Resumed time.Time `json:"resumed,omitzero"`
}

// pauses reads and changes the pauses in the store, and tells the scheduler of them.
type pauses struct {
	config    *Config
	directory *directory
	schedule  *scheduler
	settler   *settler

	mu sync.Mutex // guards the fields below
	// read says that the scheduler knows the pauses, up to the version known of the documents. outdated
	// is when the first of them is to be removed, zero for none.
	read     bool
	known    uint64
	outdated time.Time
	paused   map[string]schedule.Pause // as the scheduler has them, which must not change
}

const resumedFor = 7 * 24 * time.Hour

// find returns the document of a destination's pause, with the Version zero if there is none.
func (ps *pauses) find(ctx context.Context, destination string) (store.Document, pause, error) {
	d, err := ps.config.Store.Document(ctx, pauseFolder, destination)
	if err != nil || d.Version == 0 {
		return d, pause{}, err
	}
	p, err := readPause(d)
	return d, p, err
}

// set pauses a destination in the store, unless it is paused already, and calls learn.
// stored reports whether this call has stored the pause, even if learn fails.
func (ps *pauses) set(ctx context.Context, d Disabled) (stored bool, err error) {
	held, p, err := ps.find(ctx, d.Destination)
	if err == nil && (held.Version == 0 || !p.Resumed.IsZero()) {
		if held.Value, err = json.Marshal(pause{Disabled: d}); err == nil {
			_, err = ps.config.Store.SetDocument(ctx, held)
		}
		stored = err == nil
	}
	if err == nil || errors.Is(err, store.ErrConflict) { // on a conflict, another call has paused it
		err = ps.learn(ctx)
	}
	return stored, err
}

// RemovePause removes the pause of a destination that was deleted from the store of a Forwarder. Without
// it, the destination stays in Forwarder.Held, and what waits for it goes on waiting. Package tenants
// calls it; a Directory of one's own may.
func RemovePause(ctx context.Context, s store.DocumentStore, destination string) error {
	for {
		d, err := s.Document(ctx, pauseFolder, destination)
		if err != nil || d.Version == 0 {
			return err
		}
		d.Value = nil
		if _, err = s.SetDocument(ctx, d); !errors.Is(err, store.ErrConflict) {
			return err
		}
	}
}

// learn passes the pauses in the store to the scheduler, unless they are as they were. After an error
// the scheduler keeps its own.
func (ps *pauses) learn(ctx context.Context) error {
	upTo, changed, err := ps.changed(ctx)
	if err != nil || !changed {
		return err
	}
	paused := make(map[string]schedule.Pause)
	var outdated time.Time
	for d, err := range ps.config.Store.Documents(ctx, pauseFolder, "") {
		if err != nil {
			return err
		}
		p, err := readPause(d)
		if err != nil {
			return err
		}
		if !p.Resumed.IsZero() {
			end := p.Resumed.Add(resumedFor)
			if ps.config.now().After(end) {
				d.Value = nil
				_, _ = ps.config.Store.SetDocument(ctx, d) // or another node removes it
				continue
			}
			if outdated.IsZero() || end.Before(outdated) {
				outdated = end
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
	ps.mu.Lock()
	was := ps.paused
	ps.mu.Unlock()
	for id := range was {
		if _, left := paused[id]; !left { // the destination may be deleted, so the next attempt asks the Directory
			ps.directory.forget("", id)
		}
	}
	ps.settler.returnAll(ps.schedule.SetPaused(paused, upTo))
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.read = true; upTo >= ps.known { // as in SetPaused, another call may have read later ones
		ps.known, ps.outdated, ps.paused = upTo, outdated, paused
	}
	return nil
}

// changed reports whether the store may have other pauses than the scheduler, or has one to remove. It
// returns the version of the documents up to which it has looked.
func (ps *pauses) changed(ctx context.Context) (upTo uint64, changed bool, err error) {
	ps.mu.Lock()
	upTo = ps.known
	changed = !ps.read || !ps.outdated.IsZero() && ps.config.now().After(ps.outdated)
	ps.mu.Unlock()
	for !changed {
		var some []store.DocumentChange
		some, upTo, err = ps.config.Store.Changes(ctx, upTo)
		if err != nil || len(some) == 0 {
			break
		}
		changed = slices.ContainsFunc(some, func(c store.DocumentChange) bool { return c.Folder == pauseFolder })
	}
	if changed || errors.Is(err, store.ErrTooOld) {
		_, upTo, err = ps.config.Store.Changes(ctx, store.Latest)
		return upTo, true, err
	}
	if err == nil {
		ps.mu.Lock()
		ps.known = max(ps.known, upTo)
		ps.mu.Unlock()
	}
	return upTo, false, err
}

func readPause(d store.Document) (p pause, err error) {
	if err := json.Unmarshal(d.Value, &p); err != nil {
		return p, fmt.Errorf("webhook: document %q in the folder %q: %w", d.Name, d.Folder, err)
	}
	p.Destination = d.Name
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
