package analytics

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// reportInterval is how often the log repeats that a trouble lasts.
const reportInterval = time.Minute

// A reporter logs trouble without flooding the log: the first message lost for a
// reason at once, then at most one line per reason and reportInterval, with the
// number since the line before. What is left is logged when uploads work again or
// the client is shut down.
type reporter struct {
	log *slog.Logger

	mu      sync.Mutex // not held while logging
	muted   bool       // the client is being set up; unmute logs what there is
	found   int        // messages of an earlier process
	failing bool       // the latest attempt that ended failed
	full    digest
	disk    digest
	dropped [len(reasons)]digest
}

// A digest adds up messages between log lines.
type digest struct {
	logged  time.Time // the latest line; zero before the first
	pending int       // messages since
	err     error     // of the latest of them
}

// newReporter returns a reporter that logs nothing about SpoolDir before unmute.
func newReporter(log *slog.Logger) *reporter { return &reporter{log: log, muted: true} }

// unmute logs what was met while the client was set up. Then every other call
// waits, and a logger that makes one would have waited for itself.
func (r *reporter) unmute() {
	r.mu.Lock()
	r.muted = false
	trouble, err := r.disk.take(time.Now()), r.disk.err
	r.mu.Unlock()
	if r.found > 0 {
		r.log.Info("analytics: messages of an earlier process found in SpoolDir", "messages", r.found)
	}
	r.logSpool(trouble, err)
}

// add returns how many messages to log now, possibly 0.
func (d *digest) add(n int, err error, now time.Time) int {
	d.pending += n
	d.err = err
	if !d.logged.IsZero() && now.Sub(d.logged) < reportInterval {
		return 0
	}
	return d.take(now)
}

func (d *digest) take(now time.Time) int {
	n := d.pending
	if n > 0 {
		d.pending, d.logged = 0, now
	}
	return n
}

// refused notes a call that returned ErrQueueFull.
func (r *reporter) refused() {
	r.mu.Lock()
	n := r.full.add(1, nil, time.Now())
	r.mu.Unlock()
	r.logRefused(n)
}

func (r *reporter) logRefused(n int) {
	if n > 0 {
		r.log.Error("analytics: queue full, messages refused", "messages", n)
	}
}

// spool notes trouble with SpoolDir.
func (r *reporter) spool(err error) {
	r.mu.Lock()
	n := 0
	if r.muted {
		r.disk.pending++
		r.disk.err = err
	} else {
		n = r.disk.add(1, err, time.Now())
	}
	r.mu.Unlock()
	r.logSpool(n, err)
}

func (r *reporter) logSpool(n int, err error) {
	if n > 0 {
		r.log.Error("analytics: trouble with SpoolDir", "times", n, "error", err)
	}
}

// failed notes an attempt that will be repeated.
func (r *reporter) failed(err error) {
	r.mu.Lock()
	first := !r.failing
	r.failing = true
	r.mu.Unlock()
	if first {
		r.log.Warn("analytics: uploads fail, will retry", "error", err)
	}
}

// settled notes what became of messages.
func (r *reporter) settled(d Delivery) {
	if d.Reason == "" {
		r.succeeded()
		return
	}
	for i, reason := range reasons {
		if reason != d.Reason {
			continue
		}
		r.mu.Lock()
		n := r.dropped[i].add(d.Count, d.Err, time.Now())
		r.mu.Unlock()
		r.logDropped(reason, n, d.Err)
	}
}

func (r *reporter) logDropped(reason Reason, n int, err error) {
	if n > 0 {
		r.log.Error("analytics: messages dropped", "messages", n, "reason", string(reason), "error", err)
	}
}

func (r *reporter) succeeded() {
	r.mu.Lock()
	recovered := r.failing
	r.failing = false
	r.mu.Unlock()
	if recovered {
		r.close()
		r.log.Info("analytics: uploads succeed again")
	}
}

// close logs what the digests still hold.
func (r *reporter) close() {
	r.mu.Lock()
	now := time.Now()
	full := r.full.take(now)
	disk, diskErr := r.disk.take(now), r.disk.err
	var dropped [len(reasons)]digest
	for i := range r.dropped {
		d := &r.dropped[i]
		dropped[i].err = d.err
		dropped[i].pending = d.take(now)
	}
	r.mu.Unlock()
	r.logRefused(full)
	r.logSpool(disk, diskErr)
	for i, d := range dropped {
		r.logDropped(reasons[i], d.pending, d.err)
	}
}

// attempt logs one request at debug level.
func (r *reporter) attempt(ctx context.Context, messages, number int, err error) {
	if !r.log.Enabled(ctx, slog.LevelDebug) {
		return
	}
	if err != nil {
		r.log.Debug("analytics: attempt failed", "messages", messages, "attempt", number, "error", err)
		return
	}
	r.log.Debug("analytics: batch delivered", "messages", messages, "attempt", number)
}
