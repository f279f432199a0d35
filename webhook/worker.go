package webhook

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// parkFor is how long the deliveries of a destination that cannot be used are
// left alone before it is looked up again.
const parkFor = 30 * time.Second

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
	t := w.f.dispatch.next(turn{}, noAttempt)
	for t.lane != nil {
		t = w.f.dispatch.next(t, w.deliver(t.lane, t.leased))
	}
}

// deliver attempts one delivery and reports what becomes of it.
func (w *worker) deliver(l *lane, d leased) pace {
	f := w.f
	t, err := f.resolve(l)
	if err != nil {
		f.park(l, d, err)
		return noAttempt
	}
	if time.Until(d.until) < 2*f.config.Timeout {
		f.settler.giveBack(d.Delivery) // too late to be settled within the lease
		return noAttempt
	}
	tries := d.Tries
	s, ok := w.attempt(l, d.Delivery, t)
	var due time.Time
	if ok && s.Verdict == Retry {
		due = s.Delivery.Due
	}
	w.report(l, d.Delivery, due)
	if !ok {
		f.settler.giveBack(d.Delivery)
		return noAttempt
	}
	p := noAttempt
	switch {
	case s.Verdict == Done:
		p = answered
	case s.Delivery.Tries > tries:
		p = paceOf(w.results[:len(w.open)])
	}
	f.settler.add(s, f.accounts.of(l))
	f.log(l, &s)
	if p == failing || p == timedOut {
		f.failed(l, p, &s)
	}
	// What was leased with it may be in flight for long, and keeps it in
	// memory.
	*d.Delivery = Delivery{}
	return p
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
			Destination: l.id, ID: d.ID, MessageID: d.MessageID, Source: d.Source, User: d.User, Event: d.Event, Type: d.Type, Trace: d.Trace,
			Attempt: r.attempt, Outcome: r.outcomeOf(), Due: due,
		})
	}
}

// failed tells the dispatcher of an attempt that failed for the destination's
// fault. What the lane may not attempt now goes back to the store.
func (f *Forwarder) failed(l *lane, p pace, s *Settlement) {
	back, opened := f.dispatch.fail(l, p, s, time.Now())
	for _, v := range back {
		f.settler.giveBack(v.Delivery)
	}
	if opened {
		f.config.Logger.Warn("webhook: destination keeps failing, its deliveries wait",
			"destination", l.id, "reason", string(lastReason(&s.Delivery)))
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
		source, err := f.lookup(l.id)
		if err != nil {
			return nil, err
		}
		if c != nil && c.source == source {
			break
		}
		if source.ID != l.id {
			return nil, fmt.Errorf("%w: Lookup of %q returned the destination %q", errInvalid, l.id, source.ID)
		}
		t, err := f.compile(source)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errInvalid, err)
		}
		c = &compiled{source, t}
	case c == nil:
		if c = f.static[l.id]; c == nil {
			return nil, ErrUnknownDestination
		}
	}
	if c.target.disabled {
		return nil, errDisabled
	}
	if c != l.target.Load() {
		f.dispatch.use(l, c, time.Now())
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

// park leaves the lane alone for a while and gives d, and what else the lane
// has ready, back to the store.
func (f *Forwarder) park(l *lane, d leased, why error) {
	now := time.Now()
	ready, wait := f.dispatch.park(l, now, holdOf(why))
	for _, v := range append(ready, d) {
		f.settler.giveBack(v.Delivery)
	}
	if context.Cause(f.attempts) != nil {
		return // not the destination's fault
	}
	if log, held := l.failures.failed(now); log {
		f.config.Logger.Warn("webhook: destination cannot be used, its deliveries wait",
			"destination", l.id, "error", why, "wait", wait, "unlogged", held)
	}
}

// log logs what became of a delivery, unless all is well.
func (f *Forwarder) log(l *lane, s *Settlement) {
	if s.Verdict == Done {
		if l.failures.recovered() {
			f.config.Logger.Info("webhook: destination takes deliveries again", "destination", l.id)
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
	args := []any{"destination", l.id, "source", d.Source, "id", d.MessageID, "reason", string(reason), "tries", d.Tries}
	if n := len(d.Attempts); n > 0 {
		a := &d.Attempts[n-1]
		args = append(args, "endpoint", a.Endpoint, "status", a.Status, "error", a.Error)
	}
	if s.Verdict == Retry {
		args = append(args, "due", d.Due)
	}
	f.config.Logger.Warn(text, append(args, "unlogged", held)...)
}
