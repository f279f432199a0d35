package analytics

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// reportInterval is the shortest time between two log lines about the same trouble.
const reportInterval = time.Minute

// A reporter logs trouble without flooding the log. It logs the first lost message for a
// reason at once. After that it logs at most one line per reason and reportInterval, with
// the number of messages since the previous line. It writes this line at the next lost
// message, at the next delivery or when the client is shut down.
type reporter struct {
	log *slog.Logger

	mu      sync.Mutex // guards the fields below; not held while logging
	muted   bool       // the client is being set up; unmute logs the trouble of that time
	found   int        // number of messages that an earlier process left
	failing bool       // uploads fail, and a line has said so
	warned  time.Time  // time of the latest such line; zero before the first
	digests [len(reasons) + 3]digest
}

// warnings is the handler of a client without a Logger. It passes warnings and errors to
// slog.Default, as it is at that time.
type warnings struct{}

func (warnings) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= slog.LevelWarn && slog.Default().Enabled(ctx, l)
}
func (warnings) Handle(ctx context.Context, r slog.Record) error {
	return slog.Default().Handler().Handle(ctx, r)
}
func (w warnings) WithAttrs([]slog.Attr) slog.Handler { return w } // the client uses neither attributes
func (w warnings) WithGroup(string) slog.Handler      { return w } // of a logger nor groups

// Indices of the digests that do not belong to a Reason.
const (
	refusals      = len(reasons) + iota // calls that returned ErrQueueFull
	diskFails                           // failures of SpoolDir
	misdirections                       // batches that stayed in SpoolDir because of an answer that says nothing about them
)

// A digest counts messages, or failures, between two log lines.
type digest struct {
	logged  time.Time // time of the latest line; zero before the first
	pending int       // count since that line
	err     error     // the latest error
}

// newReporter returns a reporter that logs nothing about SpoolDir until unmute is called.
func newReporter(log *slog.Logger) *reporter { return &reporter{log: log, muted: true} }

// unmute logs the trouble that occurred while the client was set up. During the set-up all
// calls wait, so a log handler that makes a call would deadlock.
func (r *reporter) unmute() {
	r.mu.Lock()
	r.muted = false
	r.mu.Unlock()
	if r.found > 0 {
		r.log.Info("analytics: messages of an earlier process found in SpoolDir", "messages", r.found)
	}
	r.logPending(0)
}

// note adds n to a digest, and logs the digest if a line is due.
func (r *reporter) note(kind, n int, err error) {
	r.mu.Lock()
	d := &r.digests[kind]
	d.pending += n
	d.err = err
	if r.muted {
		r.mu.Unlock()
		return
	}
	n = d.take(reportInterval)
	r.mu.Unlock()
	r.logDigest(kind, n, err)
}

// take returns the count to be logged and resets it. It returns 0 if there is none, or if
// the latest line is younger than interval.
func (d *digest) take(interval time.Duration) int {
	n, now := d.pending, time.Now()
	if n == 0 || now.Sub(d.logged) < interval {
		return 0
	}
	d.pending, d.logged = 0, now
	return n
}

func (r *reporter) logDigest(kind, n int, err error) {
	switch {
	case n == 0:
	case kind == refusals:
		r.log.Error("analytics: queue full, messages refused", "messages", n)
	case kind == diskFails:
		r.log.Error("analytics: trouble with SpoolDir: new messages may be held in memory alone, and stored ones may be sent later or twice; check the disk", "times", n, "error", err)
	case kind == misdirections:
		r.log.Warn("analytics: batches refused, which stay in SpoolDir: check the write key and the Endpoint", "times", n, "error", err)
	default:
		r.log.Error("analytics: messages dropped", "messages", n, "reason", string(reasons[kind]), "error", err)
	}
}

// logPending writes one log line for each digest whose latest line is interval old, with the
// number of dropped messages since that line.
func (r *reporter) logPending(interval time.Duration) {
	for kind := range r.digests {
		r.mu.Lock()
		d := &r.digests[kind]
		n, err := d.take(interval), d.err
		r.mu.Unlock()
		r.logDigest(kind, n, err)
	}
}

// refused records a call that returned ErrQueueFull.
func (r *reporter) refused() { r.note(refusals, 1, nil) }

// spool records a failure of SpoolDir.
func (r *reporter) spool(err error) { r.note(diskFails, 1, err) }

// misdirected records that a batch stays in SpoolDir because of an answer that says nothing about
// its messages.
func (r *reporter) misdirected(err error) {
	r.mu.Lock()
	r.failing = true
	r.mu.Unlock()
	r.note(misdirections, 1, err)
}

// failed records a failed attempt that will be repeated.
func (r *reporter) failed(err error) {
	now := time.Now()
	r.mu.Lock()
	first := !r.failing && now.Sub(r.warned) >= reportInterval
	if first {
		r.failing, r.warned = true, now
	}
	r.mu.Unlock()
	if first {
		r.log.Warn("analytics: uploads fail, will retry", "error", err)
	}
}

// settled records the outcome of messages.
func (r *reporter) settled(d Delivery) {
	if d.Reason != "" {
		r.note(d.Reason.index(), d.Count, d.Err)
		return
	}
	r.mu.Lock()
	recovered := r.failing
	r.failing = false
	r.mu.Unlock()
	r.logPending(reportInterval)
	if recovered {
		r.log.Info("analytics: uploads succeed again")
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
