package webhook

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// attempt sends d to all its open endpoints at once, and returns the settlement of d: Return if the
// forwarder was stopped before an endpoint took d.
func (w *worker) attempt(l *lane, d *Delivery, t *target) store.Settlement {
	now := w.config.now()
	w.open = w.open[:0]
	if t == w.directory.nothing {
		return bury(d, ReasonNoEndpoint, now)
	}
	if !d.Expires.IsZero() && now.After(d.Expires) && !w.schedule.Outlasted(l.Lane, d.Expires) {
		return bury(d, ReasonExpired, now)
	}
	var opens time.Time
	if w.open, opens = t.open(d, now, w.open); len(w.open) == 0 {
		// The settings have changed: of the endpoints for which Due was computed, one would be open.
		if opens.IsZero() {
			return bury(d, lastReason(d), now)
		}
		return postpone(d, opens)
	}
	if d.Expires.IsZero() {
		d.Expires = now.Add(t.limits.Window).UTC()
	}
	if len(w.open) == 1 {
		w.results[0] = w.senders.send(w.attempts, d, w.open[0])
	} else {
		w.sendToAll(l, d, t)
	}
	s := t.decide(d, w.open, w.results[:len(w.open)], w.config.now())
	if s.Verdict != store.Done && w.attempts.Err() != nil {
		return store.Settlement{Verdict: store.Return, Delivery: *d}
	}
	return s
}

// sendToAll sends d to several endpoints at once. It returns when one has taken d, or all requests
// have failed. After one has taken d, the other requests may run to their end, so that their
// endpoints get d too, for at most MaxConcurrent deliveries of a destination at a time. Beyond
// that, they are cancelled.
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
		mayEnd := int(l.stragglers.Add(1)) <= t.limits.Slots
		if !mayEnd {
			l.stragglers.Add(-1)
			cut(errors.New("webhook: another endpoint has taken the delivery"))
		}
		w.requests.Go(func() {
			for range left {
				end := <-ends
				w.recorder.requested(&of, &end.result, time.Time{})
			}
			if mayEnd {
				l.stragglers.Add(-1)
				cut(nil)
			}
		})
		return
	}
	cut(nil)
}

// isClosed reports whether the endpoint of c gets no request now.
func isClosed(c store.Closed, now time.Time) bool { return c.Until.IsZero() || now.Before(c.Until) }

// open appends to dst the endpoints that are open to d. It also returns when the first endpoint is
// open: now if dst gets one, zero if all are closed to d for good.
func (t *target) open(d *Delivery, now time.Time, dst []*endpoint) (_ []*endpoint, first time.Time) {
	for _, e := range t.endpoints {
		i := slices.IndexFunc(d.Closed, func(c store.Closed) bool { return c.Endpoint == e.hash && isClosed(c, now) })
		at := now
		if i < 0 {
			dst = append(dst, e)
		} else {
			at = d.Closed[i].Until
		}
		if first.IsZero() || !at.IsZero() && at.Before(first) {
			first = at
		}
	}
	return dst, first
}

// decide turns the results of requests to these endpoints into the settlement of d. If an endpoint
// took d, d is done. If no endpoint may take d any more, or the retry window is over, d is buried.
// Otherwise d becomes due again by its schedule.
//
// An endpoint that sent a Retry-After stays closed to d for that time, but at most until the last
// attempt of the retry window. Other endpoints may get d before that.
func (t *target) decide(d *Delivery, endpoints []*endpoint, results []result, now time.Time) store.Settlement {
	for i := range results {
		if results[i].outcome == OutcomeDelivered {
			return store.Settlement{Verdict: store.Done, Delivery: *d, At: now}
		}
	}
	next := *d
	next.Tries++
	next.Attempts = slices.Clip(d.Attempts)
	next.Closed = slices.DeleteFunc(slices.Clone(d.Closed), func(c store.Closed) bool { return !isClosed(c, now) })
	longest := d.Expires.Add(-t.timeout).Sub(now)
	for i := range results {
		r := &results[i]
		if next.Attempts = append(next.Attempts, r.attempt); len(next.Attempts) > store.MaxAttempts {
			next.Attempts = slices.Delete(next.Attempts, 2, 3) // the first two and the latest remain
		}
		if r.outcome == OutcomePermanent {
			next.Closed = append(next.Closed, store.Closed{Endpoint: endpoints[i].hash})
		} else if wait := min(r.retryAfter, longest); wait > 0 {
			// As stores truncate Due. Otherwise the endpoint could still be closed when d is due.
			until := now.Add(wait).UTC().Truncate(time.Microsecond)
			next.Closed = append(next.Closed, store.Closed{Endpoint: endpoints[i].hash, Until: until})
		}
	}
	if len(next.Closed) > MaxEndpoints {
		// The oldest entries belong to endpoints that the destination no longer has.
		next.Closed = next.Closed[len(next.Closed)-MaxEndpoints:]
	}
	var space [MaxEndpoints]*endpoint
	_, opens := t.open(&next, now, space[:0])
	if opens.IsZero() {
		return bury(&next, results[0].attempt.Reason, now)
	}
	due, ok := t.nextAttempt(now, d.Expires, next.Tries, opens.Sub(now))
	if !ok {
		return bury(&next, ReasonExpired, now)
	}
	return postpone(&next, due)
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
