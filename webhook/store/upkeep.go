package store

import (
	"log/slog"
	"sync"
	"time"
)

// An Upkeep watches the maintenance steps of a store, which run again and again in the background. It
// warns of a step that keeps failing, and returns what Maintained wants. Its methods may be
// called concurrently.
type Upkeep struct {
	store  string
	logger *slog.Logger

	mu     sync.Mutex
	failed map[string]*failure // of the steps whose latest run failed
}

// A failure is a series of failed runs of a step. warned is when the latest warning was logged, zero
// if there was none.
type failure struct{ since, warned time.Time }

const (
	patience = time.Minute // how long a step may fail before the first warning
	reminder = time.Hour   // between two warnings of the same series
)

// NewUpkeep returns the Upkeep of a store, whose name its log lines begin with.
func NewUpkeep(store string, logger *slog.Logger) *Upkeep {
	return &Upkeep{store: store, logger: logger, failed: make(map[string]*failure)}
}

// Ran takes the result of a run of a step. The argument effect follows "deliveries go on, but" in the
// warning: what the failures lead to, and what to do.
func (u *Upkeep) Ran(step, effect string, err error) {
	u.mu.Lock()
	f, now := u.failed[step], time.Now()
	if f == nil {
		f = &failure{since: now}
	}
	before := *f
	warn := err != nil && now.Sub(f.since) >= patience && (f.warned.IsZero() || now.Sub(f.warned) >= reminder)
	if warn {
		f.warned = now
	}
	if u.failed[step] = f; err == nil {
		delete(u.failed, step)
	}
	u.mu.Unlock()
	switch {
	case warn:
		u.logger.Warn(u.store+": a maintenance step keeps failing; deliveries go on, but "+effect, "step", step, "since", before.since, "error", err)
	case err != nil:
		u.logger.Debug(u.store+": a maintenance step failed; it is tried again later", "step", step, "error", err)
	case !before.warned.IsZero():
		u.logger.Info(u.store+": a maintenance step works again", "step", step, "since", before.since)
	}
}

// Failing returns the steps that still fail and of which there was a warning, and since when they
// fail.
func (u *Upkeep) Failing() map[string]time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	failing := make(map[string]time.Time)
	for step, f := range u.failed {
		if !f.warned.IsZero() {
			failing[step] = f.since
		}
	}
	return failing
}
