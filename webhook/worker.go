package webhook

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hookferry/analytics/webhook/internal/schedule"
	"github.com/hookferry/analytics/webhook/store"
)

// A worker attempts one delivery, or batch, after another.
type worker struct {
	config    *Config
	directory *directory
	recorder  *recorder
	pauses    *pauses
	schedule  *scheduler
	settler   *settler
	senders   *senders
	attempts  context.Context // parent of every request
	requests  *sync.WaitGroup // counts the requests beside the worker's own

	left    bool                 // the attempt has left its slot, so the worker ends
	open    []*endpoint          // the endpoints that the current delivery goes to
	last    <-chan struct{}      // closed when the last request of a delivered one has ended; nil if it has
	results [maxEndpoints]result // of the endpoints in open
	batch   []*Delivery          // of the current attempt, in the order of Seq; see deliverBatch
	ends    []store.Settlement   // of the deliveries in batch
}

func (w *worker) run() {
	var t slot
	answered := false
	for !w.left && w.schedule.Next(&t, answered) {
		l, d := t.Lane, t.Item.Value
		if t.Bury {
			for _, it := range t.Items() {
				w.settle(l, it.Value, bury(it.Value, ReasonDisabled, w.config.now()))
			}
			answered = true // so that the deliveries behind d do not wait for a probe
		} else {
			answered = w.deliver(&t, l, d)
		}
	}
}

// deliver attempts the delivery d of a slot, or its batch, and hands the outcome to the settler. It reports whether
// the destination answered, even with a refusal.
func (w *worker) deliver(slot *slot, l *lane, d *Delivery) (answered bool) {
	t, hold, err := w.lookUp(slot, l)
	if w.left {
		defer w.schedule.LookedUp(slot)
	}
	if err != nil {
		w.hold(slot, l, hold, err)
		return false
	}
	if t != l.State.target.Load() {
		w.schedule.Use(l, t.limits)
		l.State.target.Store(t)
	}
	if w.left {
		return false // the next attempt finds the target in l
	}
	if t.limits.Batch.Events > 0 {
		return w.deliverBatch(slot, l, t)
	}
	if len(slot.Batch) > 1 { // the settings have changed
		w.settler.returnAll(slot.Batch[1:])
	}
	s := w.attempt(l, d, t)
	due := dueOf(&s)
	results := w.results[:len(w.open)]
	for i := range results {
		if r := &results[i]; r.attempt.Try > 0 { // the request has ended
			w.recorder.requested(d, nil, r, due)
		}
	}
	failed := s.Verdict != store.Done && s.Delivery.Tries > d.Tries
	w.settle(l, d, s)
	if !failed {
		return s.Verdict == store.Done || t == w.directory.nothing // the deliveries behind d wait for no probe either
	}
	return w.judge(l, results, &s)
}

// judge tells the scheduler of a failed attempt with these results, and disables the destination if
// that is due. s is the settlement of the delivery, or of any one of a batch. It reports whether the
// destination answered.
func (w *worker) judge(l *lane, results []result, s *store.Settlement) (answered bool) {
	f, failing := failureOf(results, s)
	if failing {
		back, opened := w.schedule.Fail(l, f)
		w.settler.returnAll(back)
		if opened {
			w.config.Logger.Warn("webhook: destination keeps failing; its new deliveries wait, and it is probed at intervals",
				"destination", l.ID, "reason", f.Reason)
		}
	}
	if w.config.DisableGone || w.config.DisableAfter > 0 || w.recorder.failures {
		w.disableIfDue(l, results, s)
	}
	return !failing
}

const slowLookup = 100 * time.Millisecond // see lookUp

// lookUp is resolve for the destination of an attempt. A first look-up that takes longer than
// slowLookup leaves its slot, and sets w.left, so that tenants whose look-ups hang delay no other. If
// too many have left, it is cut off.
func (w *worker) lookUp(slot *slot, l *lane) (t *target, hold HoldKind, err error) {
	if l.State.target.Load() != nil || w.config.Directory == nil {
		return w.directory.resolve(w.attempts, l)
	}
	ctx, cut := context.WithCancel(w.attempts)
	defer cut()
	left := make(chan bool, 1)
	late := time.AfterFunc(slowLookup, func() {
		back, ok := w.schedule.Leave(slot)
		w.settler.returnAll(back)
		if !ok {
			cut()
		}
		left <- ok
	})
	t, hold, err = w.directory.resolve(ctx, l)
	if late.Stop() {
		return t, hold, err
	}
	if w.left = <-left; !w.left && hold == HoldLookup {
		err = fmt.Errorf("webhook: look-up took longer than %v, as many others do", slowLookup)
	}
	return t, hold, err
}

// settle logs the outcome of d, passes it to the settler, and empties d: the deliveries of one
// fetch share an array, which stays in memory until the slowest of them has ended. The next
// delivery with the Key of d starts once the outcome is stored, so the outcome waits for the last
// request of d.
func (w *worker) settle(l *lane, d *Delivery, s store.Settlement) {
	w.log(l, &s)
	if last := w.last; last != nil && d.Key != "" {
		late := s // in memory of its own, so that the usual settlement needs none
		w.requests.Go(func() {
			<-last
			w.settler.add(late)
		})
	} else {
		w.settler.add(s)
	}
	w.last = nil
	*d = Delivery{}
}

// failureOf describes a failed attempt for the scheduler. It returns false if all outcomes are
// permanent, such as a 404: then the destination does not count as failing.
func failureOf(results []result, s *store.Settlement) (f schedule.Failure, failing bool) {
	f.Reason, f.Due, f.Keyed = string(lastReason(&s.Delivery)), dueOf(s), s.Delivery.Key != ""
	for i := range results {
		if r := &results[i]; r.outcome == OutcomeRetryable {
			failing = true
			f.TimedOut = f.TimedOut || r.attempt.Reason == ReasonTimeout
		}
	}
	return f, failing
}

// hold suspends a destination that cannot be used, and returns its deliveries to the store.
func (w *worker) hold(slot *slot, l *lane, hold HoldKind, why error) {
	l.State.target.Store(nil) // so that deliver calls Use once the destination can be used again
	ready, wait := w.schedule.Hold(slot, string(hold), hold == HoldLookup)
	w.settler.returnAll(ready)
	if !w.left { // otherwise lookUp has given them back
		w.settler.returnAll(slot.Items())
	}
	if context.Cause(w.attempts) != nil {
		return // the forwarder stops; the destination is not at fault
	}
	if log, unlogged := l.State.failures.failed(); log {
		w.config.Logger.Warn("webhook: destination cannot be used; its deliveries wait",
			"destination", l.ID, "error", why, "wait", wait, "unlogged", unlogged)
	}
}

// log logs a failure, a dead letter, or the first success after failures. It notes in l that a delivery
// with a Key lapsed.
func (w *worker) log(l *lane, s *store.Settlement) {
	d := &s.Delivery
	state, text, reason := &l.State.failures, "webhook: attempt failed", lastReason(d)
	switch s.Verdict {
	case store.Return:
		return
	case store.Done:
		if l.State.failures.recovered() {
			w.config.Logger.Info("webhook: destination takes deliveries again", "destination", l.ID)
		}
		return
	case store.Bury:
		state, text, reason = &l.State.deaths, "webhook: delivery given up; it is a dead letter now", s.Reason
		if d.Key != "" && reason == ReasonExpired {
			l.State.lapsed.Store(true)
		}
	}
	log, unlogged := state.failed()
	if !log {
		return
	}
	args := []any{"destination", l.ID, "source", d.Source, "id", d.MessageID, "reason", string(reason), "tries", d.Tries}
	if n := len(d.Attempts); n > 0 {
		a := &d.Attempts[n-1]
		args = append(args, "endpoint", a.Endpoint, "status", a.Status, "error", a.Error)
	}
	if s.Verdict == store.Retry {
		args = append(args, "due", d.Due)
	}
	w.config.Logger.Warn(text, append(args, "unlogged", unlogged)...)
}
