package webhook

import (
	"context"
	"errors"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// attempt sends d to all its open endpoints at once, and returns the settlement of d: Return if the
// forwarder was stopped before an endpoint took d.
func (w *worker) attempt(l *lane, d *Delivery, t *target) store.Settlement {
	if s, ended := w.begin(l, d, t); ended {
		return s
	}
	if len(w.open) == 1 {
		w.results[0] = w.senders.send(w.attempts, d, w.open[0])
	} else {
		w.sendToAll(l, d, t)
	}
	s := w.decide(d, t, w.results[:len(w.open)], w.config.now(), 0)
	if s.Verdict != store.Done && w.attempts.Err() != nil {
		return store.Settlement{Verdict: store.Return, Delivery: *d}
	}
	return s
}

// begin finds the open endpoints of d, and begins its retry window. If there is nothing to attempt, it
// returns the settlement of d instead.
func (w *worker) begin(l *lane, d *Delivery, t *target) (s store.Settlement, ended bool) {
	now := w.config.now()
	w.open = w.open[:0]
	if t == w.directory.nothing {
		return bury(d, ReasonNoEndpoint, now), true
	}
	if !d.Expires.IsZero() && now.After(d.Expires) && !w.schedule.Outlasted(l, d.Expires) {
		return bury(d, ReasonExpired, now), true
	}
	var opens time.Time
	if w.open, opens = t.open(d, now, w.open); len(w.open) == 0 {
		// The settings have changed: of the endpoints for which Due was computed, one would be open.
		if opens.IsZero() {
			return bury(d, lastReason(d), now), true
		}
		return postpone(d, opens), true
	}
	if d.Expires.IsZero() {
		d.Expires = now.Add(w.window(l, d, t, now)).UTC()
	}
	return s, false
}

// window returns the retry window of d, whose first attempt begins now. If deliveries of l with a Key have
// lapsed, d was perhaps behind one of them. Then its window is counted from its put, which is its Due,
// but has time for an attempt: otherwise n deliveries behind a failing one would take n windows.
func (w *worker) window(l *lane, d *Delivery, t *target, now time.Time) time.Duration {
	end := d.Due.Add(t.limits.Window)
	if d.Key == "" || !l.State.lapsed.Load() || w.schedule.Outlasted(l, end) {
		return t.limits.Window
	}
	return max(end.Sub(now), t.timeout)
}

// decide calls target.decide. If the store keeps a History, it adds the attempts to a delivery that
// was delivered.
func (w *worker) decide(d *Delivery, t *target, results []result, now time.Time, wait time.Duration) store.Settlement {
	s := t.decide(d, w.open, results, now, wait)
	if h, ok := w.config.Store.(store.History); ok && h.Keeps() && s.Verdict == store.Done {
		s.Delivery = tried(d, results)
	}
	return s
}

// sendToAll sends d to several endpoints at once. It returns when one has taken d, or all requests
// have failed. After one has taken d, the other requests may run to their end, so that their
// endpoints get d too, for at most MaxConcurrent deliveries of a destination at a time. Beyond
// that, they are cancelled, unless d has a Key: a receiver may begin to read a cancelled request
// after the next one with the Key, so sendToAll waits for its end. w.last says when they have ended.
func (w *worker) sendToAll(l *lane, d *Delivery, t *target) {
	ctx, cut := context.WithCancelCause(w.attempts)
	type ending struct {
		i int
		result
	}
	ends := make(chan ending, len(w.open))
	of := *d // the caller clears d, perhaps before the last request has ended
	for i, e := range w.open {
		w.requests.Go(func() {
			ends <- ending{i, w.senders.send(ctx, &of, e)}
		})
	}
	clear(w.results[:len(w.open)])
	for left := len(w.open) - 1; left >= 0; left-- {
		end := <-ends
		w.results[end.i] = end.result
		if end.outcome != OutcomeDelivered {
			continue
		}
		if left == 0 {
			break
		}
		mayEnd := int(l.State.stragglers.Add(1)) <= t.limits.Slots
		if !mayEnd {
			l.State.stragglers.Add(-1)
			if d.Key != "" {
				continue
			}
			cut(errors.New("webhook: another endpoint has taken the delivery"))
		}
		last := make(chan struct{})
		w.last = last
		w.requests.Go(func() {
			defer close(last)
			for range left {
				end := <-ends
				w.recorder.requested(&of, nil, &end.result, time.Time{})
			}
			if mayEnd {
				l.State.stragglers.Add(-1)
				cut(nil)
			}
		})
		return
	}
	cut(nil)
}

// dueOf returns when the delivery of s is attempted again, zero if it is not.
func dueOf(s *store.Settlement) time.Time {
	if s.Verdict != store.Retry {
		return time.Time{}
	}
	return s.Delivery.Due
}

func postpone(d *Delivery, due time.Time) store.Settlement {
	s := store.Settlement{Verdict: store.Retry, Delivery: *d}
	s.Delivery.Due = due.UTC()
	return s
}

func bury(d *Delivery, why Reason, now time.Time) store.Settlement {
	return store.Settlement{Verdict: store.Bury, Delivery: *d, Reason: why, At: now.UTC()}
}

// lastReason returns why the latest request of d failed, ReasonRefused if there was none.
func lastReason(d *Delivery) Reason {
	if n := len(d.Attempts); n > 0 {
		return d.Attempts[n-1].Reason
	}
	return ReasonRefused
}
