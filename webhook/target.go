package webhook

import (
	"crypto/tls"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/webhook/internal/schedule"
	"github.com/hookferry/analytics/webhook/internal/wire"
	"github.com/hookferry/analytics/webhook/store"
)

// A target is a Destination that was checked and made ready for attempts. It does not change.
type target struct {
	source    *Destination // the Destination that was compiled
	tls       *tls.Config  // nil: that of the client
	timeout   time.Duration
	retries   *Retries // of the destination, or of Config; nil if neither has any
	schedule  Schedule
	limits    schedule.Limits
	signer    *signature.Signer         // nil: no X-Signature
	standard  *signature.StandardSigner // nil: no headers of Standard Webhooks
	endpoints []*endpoint
}

// An endpoint is an Endpoint of a target.
type endpoint struct {
	target *target
	raw    string      // the URL as it was given
	url    *url.URL    // without the fragment
	hash   uint64      // names the URL in Delivery.Closed
	name   string      // the URL without user, query and fragment, for logs and Attempt
	header http.Header // header of each request, without the signatures
	traced bool        // header has a static traceparent or tracestate
	wire   *wire.Target

	// secrets are redacted in answers, the longest first, because a secret may contain a shorter one.
	secrets []string
}

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
// attempt of the retry window. Other endpoints may get d before that. A wait, unless it is zero,
// replaces that of the schedule.
func (t *target) decide(d *Delivery, endpoints []*endpoint, results []result, now time.Time, wait time.Duration) store.Settlement {
	for i := range results {
		if results[i].outcome == OutcomeDelivered {
			return store.Settlement{Verdict: store.Done, Delivery: *d, At: now}
		}
	}
	next := tried(d, results)
	next.Closed = slices.DeleteFunc(slices.Clone(d.Closed), func(c store.Closed) bool { return !isClosed(c, now) })
	longest := d.Expires.Add(-t.timeout).Sub(now)
	for i := range results {
		r := &results[i]
		if r.outcome == OutcomePermanent {
			next.Closed = append(next.Closed, store.Closed{Endpoint: endpoints[i].hash})
		} else if wait := min(r.retryAfter, longest); wait > 0 {
			// As stores truncate Due. Otherwise the endpoint could still be closed when d is due.
			until := now.Add(wait).UTC().Truncate(time.Microsecond)
			next.Closed = append(next.Closed, store.Closed{Endpoint: endpoints[i].hash, Until: until})
		}
	}
	if len(next.Closed) > maxEndpoints {
		// The oldest entries belong to endpoints that the destination no longer has.
		next.Closed = next.Closed[len(next.Closed)-maxEndpoints:]
	}
	var array [maxEndpoints]*endpoint
	_, opens := t.open(&next, now, array[:0])
	if opens.IsZero() {
		return bury(&next, results[0].attempt.Reason, now)
	}
	if wait == 0 {
		wait = t.schedule.wait(next.Tries)
	}
	due, ok := t.nextAttempt(now, d.Expires, max(wait, opens.Sub(now)))
	if !ok {
		return bury(&next, ReasonExpired, now)
	}
	return postpone(&next, due)
}

// tried returns d after a try, with those of its requests that have ended.
func tried(d *Delivery, results []result) Delivery {
	next := *d
	next.Tries++
	next.Attempts = slices.Clip(d.Attempts)
	for i := range results {
		if results[i].attempt.Try == 0 {
			continue
		}
		if next.Attempts = append(next.Attempts, results[i].attempt); len(next.Attempts) > store.MaxAttempts {
			next.Attempts = slices.Delete(next.Attempts, 2, 3) // the first two and the latest remain
		}
	}
	return next
}

// nextAttempt returns when a delivery that waits for this time is due, but at the latest the time
// of the last attempt of its window. It returns false if no attempt can end within the window any
// more.
func (t *target) nextAttempt(now, expires time.Time, wait time.Duration) (time.Time, bool) {
	last := expires.Add(-t.timeout)
	if !now.Before(last) {
		return time.Time{}, false
	}
	return now.Add(min(wait, last.Sub(now))), true
}

// isClosed reports whether the endpoint of c gets no request now.
func isClosed(c store.Closed, now time.Time) bool { return c.Until.IsZero() || now.Before(c.Until) }
