package webhook

import (
	"context"
	"time"

	"github.com/hookferry/analytics/webhook/internal/schedule"
)

// A worker attempts one delivery after another.
type worker struct {
	*engine
	sender  *sender
	results [MaxEndpoints]result // of the endpoints in open
	open    []*endpoint
}

func newWorker(e *engine) *worker {
	return &worker{
		engine: e,
		sender: newSender(e),
	}
}

func (w *worker) run() {
	var t schedule.Slot
	o := schedule.NoAttempt
	for w.schedule.Next(&t, o) {
		o = w.deliver(t.Lane.Data.(*lane), t.Value.(*Delivery))
	}
}

// deliver attempts one delivery and reports what becomes of it.
func (w *worker) deliver(l *lane, d *Delivery) schedule.Outcome {
	if w.pauses.buries(l.ID) {
		s := bury(d, ReasonDisabled, w.now())
		w.settler.add(s, w.accounts.of(l))
		w.log(l, &s)
		*d = Delivery{}
		return schedule.Answered // those behind it do not wait for a probe
	}
	c, err := w.destinations.resolve(l)
	if err != nil {
		w.hold(l, d, err)
		return schedule.NoAttempt
	}
	if c != l.target.Load() {
		w.schedule.Use(l.Lane, c.target.limits)
		l.target.Store(c)
	}
	tries := d.Tries
	s, ok := w.attempt(l, d, c.target)
	var due time.Time
	if ok && s.Verdict == Retry {
		due = s.Delivery.Due
	}
	w.report(l, d, due)
	if !ok {
		w.settler.giveBack(d)
		return schedule.NoAttempt
	}
	o := schedule.NoAttempt
	switch {
	case s.Verdict == Done:
		o = schedule.Answered
	case s.Delivery.Tries > tries:
		o = schedule.Answered
		if failed, ok := failureOf(w.results[:len(w.open)], &s); ok {
			o = schedule.Failing
			defer w.failed(l, failed)
		}
		if w.config.DisableGone || w.config.DisableAfter > 0 {
			w.outlived(l, &s)
		}
	}
	w.settler.add(s, w.accounts.of(l))
	w.log(l, &s)
	// What was fetched with it may be in flight for long, and keeps it in memory.
	*d = Delivery{}
	return o
}

// report counts the requests of an attempt that have ended, and tells the
// observer of them. d is the delivery as it was, and due when it is attempted
// again.
func (w *worker) report(l *lane, d *Delivery, due time.Time) {
	for i := range w.open {
		if r := &w.results[i]; r.attempt.Try > 0 {
			w.requested(l, d, r, due)
		}
	}
}

// failed tells the scheduler of an attempt that failed for the destination's fault. What
// the lane may not attempt now goes back to the store.
func (w *worker) failed(l *lane, failed schedule.Failure) {
	back, opened := w.schedule.Fail(l.Lane, failed)
	w.returnAll(back)
	if opened {
		w.config.Logger.Warn("webhook: destination keeps failing, its deliveries wait",
			"destination", l.ID, "reason", failed.Reason)
	}
}

// hold leaves the lane alone for a while and gives d, and what else the lane has ready,
// back to the store.
func (w *worker) hold(l *lane, d *Delivery, why error) {
	hold := holdOf(why)
	l.target.Store(nil) // so that deliver calls Use once it is usable again
	ready, wait := w.schedule.Hold(l.Lane, string(hold), hold == HoldLookup)
	w.returnAll(ready)
	w.settler.giveBack(d)
	if context.Cause(w.attempts) != nil {
		return // not the destination's fault
	}
	if log, held := l.failures.failed(time.Now()); log {
		w.config.Logger.Warn("webhook: destination cannot be used, its deliveries wait",
			"destination", l.ID, "error", why, "wait", wait, "unlogged", held)
	}
}

// log logs what became of a delivery, unless all is well.
func (w *worker) log(l *lane, s *Settlement) {
	if s.Verdict == Done {
		if l.failures.recovered() {
			w.config.Logger.Info("webhook: destination takes deliveries again", "destination", l.ID)
		}
		return
	}
	d := &s.Delivery
	now := time.Now()
	state, text, reason := &l.failures, "webhook: attempt failed", lastReason(d)
	if s.Verdict == Bury {
		state, text, reason = &l.deaths, "webhook: delivery given up", s.Reason
	}
	log, held := state.failed(now)
	if !log {
		return
	}
	args := []any{"destination", l.ID, "source", d.Source, "id", d.MessageID, "reason", string(reason), "tries", d.Tries}
	if n := len(d.Attempts); n > 0 {
		a := &d.Attempts[n-1]
		args = append(args, "endpoint", a.Endpoint, "status", a.Status, "error", a.Error)
	}
	if s.Verdict == Retry {
		args = append(args, "due", d.Due)
	}
	w.config.Logger.Warn(text, append(args, "unlogged", held)...)
}
