package webhook

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hookferry/analytics/webhook/internal/schedule"
)

// A worker attempts one delivery after another.
type worker struct {
	f       *Forwarder
	sender  *sender
	results [MaxEndpoints]result // of the endpoints in open
	open    []*endpoint
}

func newWorker(f *Forwarder) *worker {
	return &worker{
		f:      f,
		sender: newSender(f),
	}
}

func (w *worker) run() {
	var t schedule.Turn
	o := schedule.NoAttempt
	for w.f.schedule.Next(&t, o) {
		o = w.deliver(t.Lane.Data.(*lane), t.Value.(*Delivery))
	}
}

// deliver attempts one delivery and reports what becomes of it.
func (w *worker) deliver(l *lane, d *Delivery) schedule.Outcome {
	f := w.f
	t, err := f.resolve(l)
	if err != nil {
		f.hold(l, d, err)
		return schedule.NoAttempt
	}
	tries := d.Tries
	s, ok := w.attempt(l, d, t)
	var due time.Time
	if ok && s.Verdict == Retry {
		due = s.Delivery.Due
	}
	w.report(l, d, due)
	if !ok {
		f.settler.giveBack(d)
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
			defer f.failed(l, failed)
		}
	}
	f.settler.add(s, f.accounts.of(l))
	f.log(l, &s)
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
			w.f.requested(l, d, r, due)
		}
	}
}

// requested counts a request that has ended and tells the observer of it.
func (f *Forwarder) requested(l *lane, d *Delivery, r *result, due time.Time) {
	if !r.cut {
		f.accounts.of(l).took(r.attempt.Took)
		f.total.took(r.attempt.Took)
	}
	if f.observed != nil {
		f.observed.attempted(Attempted{
			Destination: l.ID, ID: d.ID, MessageID: d.MessageID, Source: d.Source, User: d.User, Event: d.Event, Type: d.Type, Trace: d.Trace,
			Attempt: r.attempt, Outcome: r.outcomeOf(), Due: due,
		})
	}
}

// failed tells the scheduler of an attempt that failed for the destination's fault. What
// the lane may not attempt now goes back to the store.
func (f *Forwarder) failed(l *lane, failed schedule.Failure) {
	back, opened := f.schedule.Fail(l.Lane, failed)
	f.returnAll(back)
	if opened {
		f.config.Logger.Warn("webhook: destination keeps failing, its deliveries wait",
			"destination", l.ID, "reason", failed.Reason)
	}
}

// errDisabled says that a destination is switched off.
var errDisabled = errors.New("webhook: destination is disabled")

// errInvalid is wrapped around what is wrong with a destination.
var errInvalid = errors.New("webhook: destination is not valid")

// errLookup is wrapped around the error of a Lookup that does not know.
var errLookup = errors.New("webhook: look-up failed")

// resolve returns the lane's destination as it is now, ready for attempts.
func (f *Forwarder) resolve(l *lane) (*target, error) {
	c := l.target.Load()
	switch {
	case f.config.Lookup != nil:
		source, err := f.lookup(l.ID)
		if err != nil {
			return nil, err
		}
		if c != nil && c.source == source {
			break
		}
		if source.ID != l.ID {
			return nil, fmt.Errorf("%w: Lookup of %q returned the destination %q", errInvalid, l.ID, source.ID)
		}
		t, err := f.compile(source)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errInvalid, err)
		}
		c = &compiled{source, t}
	case c == nil:
		if c = f.static[l.ID]; c == nil {
			return nil, ErrUnknownDestination
		}
	}
	if c.target.disabled {
		return nil, errDisabled
	}
	if c != l.target.Load() {
		f.schedule.Use(l.Lane, c.target.limits)
		l.target.Store(c)
	}
	return c.target, nil
}

// lookup calls Config.Lookup. A panic in it is not the end of the program that
// the forwarder is part of.
func (f *Forwarder) lookup(id string) (d *Destination, err error) {
	ctx, cancel := context.WithTimeout(f.attempts, f.config.Timeout)
	defer cancel()
	defer func() {
		if v := recover(); v != nil {
			d, err = nil, fmt.Errorf("%w: panic: %v", errLookup, v)
		}
	}()
	d, err = f.config.Lookup(ctx, id)
	switch {
	case errors.Is(err, ErrUnknownDestination):
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("%w: %w", errLookup, err)
	case d == nil:
		return nil, ErrUnknownDestination
	}
	return d, nil
}

// holdOf names the error of resolve.
func holdOf(err error) Hold {
	switch {
	case errors.Is(err, errLookup):
		return HoldLookup
	case errors.Is(err, errInvalid):
		return HoldInvalid
	case errors.Is(err, errDisabled):
		return HoldDisabled
	}
	return HoldUnknown
}

// hold leaves the lane alone for a while and gives d, and what else the lane has ready,
// back to the store.
func (f *Forwarder) hold(l *lane, d *Delivery, why error) {
	hold := holdOf(why)
	l.target.Store(nil) // so that resolve calls Use once it is usable again
	ready, wait := f.schedule.Hold(l.Lane, string(hold), hold == HoldLookup)
	f.returnAll(ready)
	f.settler.giveBack(d)
	if context.Cause(f.attempts) != nil {
		return // not the destination's fault
	}
	if log, held := l.failures.failed(time.Now()); log {
		f.config.Logger.Warn("webhook: destination cannot be used, its deliveries wait",
			"destination", l.ID, "error", why, "wait", wait, "unlogged", held)
	}
}

// log logs what became of a delivery, unless all is well.
func (f *Forwarder) log(l *lane, s *Settlement) {
	if s.Verdict == Done {
		if l.failures.recovered() {
			f.config.Logger.Info("webhook: destination takes deliveries again", "destination", l.ID)
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
	f.config.Logger.Warn(text, append(args, "unlogged", held)...)
}
