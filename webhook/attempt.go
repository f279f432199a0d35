package webhook

import (
	"context"
	"errors"
	"slices"
	"time"
)

// attempt makes the next attempt of d, to all its open endpoints at once. It returns the outcome of
// the delivery, and false if the forwarder was stopped before any endpoint took it.
func (w *worker) attempt(l *lane, d *Delivery, t *target) (Settlement, bool) {
	now := w.now()
	w.open = w.open[:0]
	if !d.Expires.IsZero() && now.After(d.Expires) && !w.schedule.Outlasted(l.Lane, d.Expires) {
		return bury(d, ReasonExpired, now), true
	}
	var opens time.Time // when the first of the closed endpoints opens again
	for _, e := range t.endpoints {
		at, closed := closedUntil(d, e, now)
		if !closed {
			w.open = append(w.open, e)
		} else if !at.IsZero() && (opens.IsZero() || at.Before(opens)) {
			opens = at
		}
	}
	if len(w.open) == 0 {
		// This happens only after a change of settings. Otherwise a delivery is due when one of
		// its endpoints is open.
		if opens.IsZero() {
			return bury(d, lastReason(d), now), true
		}
		return postpone(d, opens), true
	}
	if d.Expires.IsZero() {
		d.Expires = now.Add(t.window).UTC()
	}
	if len(w.open) == 1 {
		p := postingOf(d)
		w.results[0] = w.sender.send(w.attempts, &p, w.open[0])
	} else {
		w.sendToAll(l, d, t)
	}
	s := decide(d, w.open, w.results[:len(w.open)], opens, w.now(), t.pace)
	return s, s.Verdict == Done || context.Cause(w.attempts) == nil
}

// errTaken is the cause of a request that was cut off because another endpoint has taken the
// delivery.
var errTaken = errors.New("webhook: another endpoint has taken the delivery")

// sendToAll makes an attempt with several endpoints. It waits until one of them has taken the
// delivery, or all have failed. Once one has taken it, the other requests in flight may still end in
// their own time, so that the other endpoints get the delivery too. At most MaxConcurrent deliveries
// of a destination may have such requests at a time. Those of further deliveries are cut off.
func (w *worker) sendToAll(l *lane, d *Delivery, t *target) {
	ctx, cut := context.WithCancelCause(w.attempts)
	type ending struct {
		i int
		result
	}
	ends := make(chan ending, len(w.open))
	p := postingOf(d)
	for i, e := range w.open {
		w.workers.Go(func() {
			s := w.senders.Get().(*sender)
			ends <- ending{i, s.send(ctx, &p, e)}
			w.senders.Put(s)
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
			cut(errTaken)
		}
		of := *d // the caller clears d
		w.workers.Go(func() {
			for range left {
				end := <-ends
				w.requested(l, &of, &end.result, time.Time{})
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

// closedUntil reports whether e is closed to d, and until when. The zero time means for ever.
func closedUntil(d *Delivery, e *endpoint, now time.Time) (time.Time, bool) {
	for _, c := range d.Closed {
		if c.Endpoint == e.hash && (c.Until.IsZero() || now.Before(c.Until)) {
			return c.Until, true
		}
	}
	return time.Time{}, false
}

// decide turns the results of an attempt, one for each of the endpoints that were open, into the
// outcome of the delivery. Any success makes it done. Otherwise it is attempted again on its
// schedule, while an endpoint may still take it and the retry window lasts. An endpoint that sent a
// Retry-After is left alone for that time, or until the last attempt of the window. That does not
// delay the other endpoints. opens is when the first endpoint opens that was closed before the
// attempt, zero if there is none.
func decide(d *Delivery, endpoints []*endpoint, results []result, opens, now time.Time, p pace) Settlement {
	for i := range results {
		if results[i].outcome == OutcomeDelivered {
			return Settlement{Verdict: Done, Delivery: *d, At: now}
		}
	}
	next := *d
	next.Tries++
	next.Attempts = slices.Clip(d.Attempts)
	next.Closed = nil
	for _, c := range d.Closed {
		if c.Until.IsZero() || now.Before(c.Until) {
			next.Closed = append(next.Closed, c)
		}
	}
	again := !opens.IsZero()
	floor := max(opens.Sub(now), 0)
	longest := max(d.Expires.Add(-p.timeout).Sub(now), 0)
	for i := range results {
		r := &results[i]
		next.Attempts = keep(next.Attempts, r.attempt)
		if r.outcome == OutcomePermanent {
			next.Closed = append(next.Closed, Closed{Endpoint: endpoints[i].hash})
			continue
		}
		wait := min(r.retryAfter, longest)
		if wait > 0 {
			// Stores keep Due to the microsecond. The endpoint must be open at that time.
			until := now.Add(wait).UTC().Truncate(time.Microsecond)
			next.Closed = append(next.Closed, Closed{Endpoint: endpoints[i].hash, Until: until})
		}
		if !again || wait < floor {
			floor = wait
		}
		again = true
	}
	if len(next.Closed) > MaxEndpoints {
		// The settings have changed. The oldest entries are of endpoints that are gone.
		next.Closed = next.Closed[len(next.Closed)-MaxEndpoints:]
	}
	if !again {
		return bury(&next, results[0].attempt.Reason, now)
	}
	due, ok := p.nextAttempt(now, d.Expires, next.Tries, floor)
	if !ok {
		return bury(&next, ReasonExpired, now)
	}
	return postpone(&next, due)
}

// postpone has d attempted at due.
func postpone(d *Delivery, due time.Time) Settlement {
	s := Settlement{Verdict: Retry, Delivery: *d}
	s.Delivery.Due = due.UTC()
	return s
}

// bury gives d up.
func bury(d *Delivery, why Reason, now time.Time) Settlement {
	return Settlement{Verdict: Bury, Delivery: *d, Reason: why, At: now.UTC()}
}

// lastReason returns why the latest request of d failed.
func lastReason(d *Delivery) Reason {
	if n := len(d.Attempts); n > 0 {
		return d.Attempts[n-1].Reason
	}
	return ReasonRefused
}

// keep adds an attempt. If there are more than MaxAttempts, it keeps the first two and the latest.
func keep(as []Attempt, a Attempt) []Attempt {
	as = append(as, a)
	if len(as) > MaxAttempts {
		as = slices.Delete(as, 2, 3)
	}
	return as
}
