package webhook

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hookferry/analytics/check"
	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/internal/retryafter"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/webhook/internal/wire"
)

// A result is how one request to one endpoint ended.
type result struct {
	outcome    Outcome
	retryAfter time.Duration // zero if the endpoint sent no Retry-After
	attempt    Attempt       // without the Answer if it was delivered
}

// A sender makes requests, one at a time.
type sender struct {
	clients *clients
	lines   []byte // header lines of the request
	buffer  wire.Buffer
	body    []byte // of a batch, at most Batch.MaxBytes, or one delivery that is larger
	ids     []byte // the webhook-ids in a batch, each with a line feed
	keepAll bool   // keeps the Answer of a request even if it was delivered

	// The fields below are about the latest request.
	secrets    []string          // texts to redact: endpoint.secrets, and the values in authorized
	authorized map[string]string // the headers that Authorize has returned
}

// senders is a pool of *sender.
type senders struct{ pool sync.Pool }

func newSenders(c *clients) *senders {
	return &senders{pool: sync.Pool{New: func() any { return &sender{clients: c} }}}
}

// A message is what a request carries.
type message struct {
	id    string // for webhook-id, not escaped
	body  []byte
	trace event.Trace
}

// send posts d to e. The request ends with ctx and with the timeout of e.
func (ss *senders) send(ctx context.Context, d *Delivery, e *endpoint) result {
	s := ss.pool.Get().(*sender)
	defer ss.pool.Put(s)
	return s.send(ctx, d, e)
}

func (s *sender) send(ctx context.Context, d *Delivery, e *endpoint) result {
	res := s.post(ctx, &message{d.ID, d.Body, d.Trace}, e)
	res.attempt.Try = d.Tries + 1
	return res
}

func (s *sender) post(ctx context.Context, m *message, e *endpoint) result {
	start := time.Now()
	res := s.roundTrip(ctx, start, m, e)
	res.attempt.At = start.UTC()
	res.attempt.Took = Millis(time.Since(start))
	res.attempt.Endpoint = e.name
	return res
}

// roundTrip makes the request and reads the answer to its end.
func (s *sender) roundTrip(ctx context.Context, now time.Time, m *message, e *endpoint) result {
	s.lines, s.secrets, s.authorized = s.lines[:0], e.secrets, nil
	deadline := now.Add(e.target.timeout)
	if e.target.source.Authorize != nil {
		if err := s.authorize(ctx, deadline, e); err != nil {
			return s.failed(ctx, OutcomeRetryable, ReasonAuthorize, err)
		}
	}
	if e.target.signer != nil {
		s.lines = append(s.lines, signature.Header+": "...)
		s.lines = e.target.signer.Append(s.lines, m.body)
		s.lines = append(s.lines, "\r\n"...)
	}
	if e.target.standard != nil {
		s.lines = appendStandard(s.lines, e.target.standard, m.id, now, m.body)
	}
	if !e.traced {
		s.lines = appendTrace(s.lines, m.trace)
	}
	a, err := s.clients.of(e).Post(ctx, deadline, e.wire, s.lines, m.body, &s.buffer)
	if err != nil {
		out, reason := errorOutcome(err)
		return s.failed(ctx, e.target.retries.outcome(out, reason, 0), reason, err)
	}
	out, reason := statusOutcome(a.Status)
	out = e.target.retries.outcome(out, reason, a.Status)
	res := result{outcome: out, attempt: Attempt{Status: a.Status, Reason: reason}}
	if a.Flaw != "" {
		res.attempt.Error = a.Flaw.Error()
	}
	if out != OutcomeDelivered || s.keepAll {
		res.attempt.Answer = s.clean(string(a.Kept))
	}
	if a.RetryAfter != "" && out == OutcomeRetryable {
		res.retryAfter, _ = retryafter.Parse(a.RetryAfter, time.Now())
	}
	return res
}

// failed returns the result of a request without an answer.
func (s *sender) failed(ctx context.Context, out Outcome, reason Reason, err error) result {
	if ue, ok := errors.AsType[*url.Error](err); ok {
		err = ue.Err // the URL may hold secrets
	}
	if ctx.Err() != nil {
		out = OutcomeCutOff // the error says nothing about the endpoint
	}
	return result{outcome: out, attempt: Attempt{Reason: reason, Error: s.clean(err.Error())}}
}

// authorize appends the headers of Destination.Authorize for e to s.lines, and adds to s.secrets.
func (s *sender) authorize(ctx context.Context, deadline time.Time, e *endpoint) error {
	ctx, cancel := context.WithDeadlineCause(ctx, deadline, wire.ErrTimeout)
	defer cancel()
	err := noPanic("Authorize", func() (err error) {
		s.authorized, err = e.target.source.Authorize(ctx, e.raw)
		return err
	})
	if err == nil {
		err = context.Cause(ctx) // Authorize took all the time of the attempt
	}
	var wrong check.Faults
	header := e.header.Clone()
	secrets := addHeaders(header, "Authorize", s.authorized, &wrong)
	s.secrets = redactable(slices.Concat(e.secrets, secrets))
	for _, name := range []string{headerTraceParent, headerTraceState} {
		wrong.Refuse(header[name] != nil && e.header[name] == nil, fmt.Sprintf("Authorize[%q]", name), "may not be replaced")
	}
	switch {
	case err != nil:
		return err
	case wrong != nil:
		return configError(wrong[:1])
	}
	for name, value := range s.authorized {
		s.lines = appendHeader(s.lines, http.CanonicalHeaderKey(name), value)
	}
	return nil
}

func (s *sender) clean(text string) string { return clean(text, s.secrets) }

// shownHeader returns the header of the latest request, which went to e, with its secrets redacted.
func (s *sender) shownHeader(e *endpoint) http.Header {
	h := e.header.Clone()
	for name := range h {
		if name != "User-Agent" && name != "Content-Type" {
			h[name] = []string{redacted}
		}
	}
	for line := range strings.Lines(string(s.lines)) {
		name, value, _ := strings.Cut(strings.TrimRight(line, "\r\n"), ": ")
		h[http.CanonicalHeaderKey(name)] = []string{value}
	}
	for name := range s.authorized {
		h[http.CanonicalHeaderKey(name)] = []string{redacted}
	}
	return h
}
