package webhook

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/hookferry/analytics/check"
	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/internal/retryafter"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/webhook/internal/wire"
)

// newClient returns an HTTP client. The guard checks its connections, unless a proxy or
// Config.DialContext makes them. All requests end with the context attempts.
func newClient(c *Config, g *guard, attempts context.Context) *wire.Client {
	if c.Proxy != nil {
		g = &guard{allow: everywhere} // the operator wrote the proxy's name
	}
	dial := g.dial
	if c.DialContext != nil {
		dial = c.DialContext
	}
	return wire.New(wire.Config{
		Context: attempts,
		Dial:    dial,
		Proxy:   c.Proxy,
		TLS:     (*TLS)(nil).config(c.TLSClientConfig),
		Timeout: c.Timeout,
		MaxIdle: 2 * c.MaxInFlight,
	})
}

// A result is how one request to one endpoint ended.
type result struct {
	outcome    Outcome
	retryAfter time.Duration // zero if the endpoint sent no Retry-After
	attempt    Attempt       // without the Answer if it was delivered
}

// A sender makes requests, one at a time.
type sender struct {
	client  *wire.Client
	lines   []byte // header lines of the request
	buffer  wire.Buffer
	keepAll bool // keeps the Answer of a request even if it was delivered

	// The fields below are about the latest request.
	secrets    []string          // texts to redact: endpoint.secrets, and the values in authorized
	authorized map[string]string // the headers that Authorize has returned
}

// senders is a pool of *sender.
type senders struct{ pool sync.Pool }

func newSenders(client *wire.Client) *senders {
	return &senders{pool: sync.Pool{New: func() any { return &sender{client: client} }}}
}

// send posts d to e. The request ends with ctx and with the timeout of e.
func (ss *senders) send(ctx context.Context, d *Delivery, e *endpoint) result {
	s := ss.pool.Get().(*sender)
	defer ss.pool.Put(s)
	return s.send(ctx, d, e)
}

func (s *sender) send(ctx context.Context, d *Delivery, e *endpoint) result {
	start := time.Now()
	res := s.roundTrip(ctx, start, d, e)
	res.attempt.At = start.UTC()
	res.attempt.Took = time.Since(start)
	res.attempt.Try = d.Tries + 1
	res.attempt.Endpoint = e.name
	return res
}

// roundTrip makes the request and reads the answer to its end.
func (s *sender) roundTrip(ctx context.Context, now time.Time, d *Delivery, e *endpoint) result {
	s.lines, s.secrets, s.authorized = s.lines[:0], e.secrets, nil
	deadline := now.Add(e.target.timeout)
	if e.target.source.Authorize != nil {
		if err := s.authorize(ctx, deadline, e); err != nil {
			return s.failed(ctx, OutcomeRetryable, ReasonAuthorize, err)
		}
	}
	if e.target.signer != nil {
		s.lines = append(s.lines, signature.Header+": "...)
		s.lines = e.target.signer.Append(s.lines, d.Body)
		s.lines = append(s.lines, "\r\n"...)
	}
	if e.target.standard != nil {
		s.lines = appendStandard(s.lines, e.target.standard, d.ID, now, d.Body)
	}
	if !e.traced {
		s.lines = appendTrace(s.lines, d.Trace)
	}
	a, err := s.client.Post(ctx, deadline, e.wire, s.lines, d.Body, &s.buffer)
	if err != nil {
		out, reason := errorOutcome(err)
		return s.failed(ctx, out, reason, err)
	}
	out, reason := statusOutcome(a.Status)
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

// addHeaders adds the headers in given, whose path is field, to header, and returns their secret
// texts. It adds to wrong a fault for each one that is not allowed.
func addHeaders(header http.Header, field string, given map[string]string, wrong *check.Faults) (secrets []string) {
	wrong.Refuse(len(given) > MaxHeaders, field, "%d given; at most %d are allowed", len(given), MaxHeaders)
	for _, name := range slices.Sorted(maps.Keys(given)) {
		value, field, canonical := given[name], fmt.Sprintf("%s[%q]", field, name), http.CanonicalHeaderKey(name)
		problem := checkHeader(name, value)
		wrong.Add(field, problem)
		wrong.Refuse(problem == "" && header[canonical] != nil, field, "is given twice")
		header[canonical] = []string{value}
		secrets = append(secrets, value)
		if _, credentials, ok := strings.Cut(value, " "); ok && canonical == "Authorization" {
			secrets = append(secrets, credentials) // without the scheme
		}
	}
	return secrets
}

// noPanic calls f, and turns a panic in it into an error.
func noPanic(name string, f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("webhook: %s panicked: %v", name, v)
		}
	}()
	return f()
}

const maxKept = wire.MaxKept // bytes of an answer or an error that are stored

// clean makes a text safe to store and print: UTF-8 of at most maxKept bytes, without secrets.
func clean(s string, secrets []string) string {
	cut := len(s) == maxKept // s was probably cut off, as Answer.Kept is
	for _, secret := range secrets {
		s = strings.ReplaceAll(s, secret, redacted)
	}
	for i := 0; cut && i <= len(s)-minSecret; i++ {
		if slices.ContainsFunc(secrets, func(secret string) bool { return strings.HasPrefix(secret, s[i:]) }) {
			s = s[:i] + redacted // a secret begins there and is cut off
			break
		}
	}
	s = strings.ToValidUTF8(s[:min(len(s), maxKept)], "\uFFFD")
	for len(s) > maxKept {
		_, size := utf8.DecodeLastRuneInString(s)
		s = s[:len(s)-size]
	}
	return s
}

func (s *sender) clean(text string) string { return clean(text, s.secrets) }

const redacted = "[redacted]"

const minSecret = 4 // bytes of the shortest secret that is redacted

// redactable returns the secrets that are long enough to be redacted, the longest first.
func redactable(secrets []string) []string {
	secrets = slices.DeleteFunc(secrets, func(s string) bool { return len(s) < minSecret })
	slices.SortFunc(secrets, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	return secrets
}

const headerTraceParent = "Traceparent"
const headerTraceState = "Tracestate"

func appendHeader(dst []byte, name, value string) []byte {
	dst = append(dst, name...)
	dst = append(dst, ": "...)
	dst = append(dst, value...)
	return append(dst, "\r\n"...)
}

// appendTrace appends the header lines of a trace, unless another program has stored a wrong one.
func appendTrace(dst []byte, t event.Trace) []byte {
	if t.Parent == "" || !t.Valid() {
		return dst
	}
	dst = appendHeader(dst, headerTraceParent, t.Parent)
	if t.State != "" {
		dst = appendHeader(dst, headerTraceState, t.State)
	}
	return dst
}

// appendStandard appends the header lines of Standard Webhooks for an attempt that starts now.
func appendStandard(dst []byte, s *signature.StandardSigner, id string, now time.Time, body []byte) []byte {
	id = standardID(id)
	dst = appendHeader(dst, signature.StandardID, id)
	dst = append(dst, signature.StandardTimestamp+": "...)
	dst = strconv.AppendInt(dst, now.Unix(), 10)
	dst = append(dst, "\r\n"+signature.StandardSignature+": "...)
	dst = s.Append(dst, id, now, body)
	return append(dst, "\r\n"...)
}

// standardID returns the webhook-id for the ID of a delivery. It percent-encodes bytes that may not
// be in a header, percent signs, and full stops, which end the webhook-id in the signed text.
func standardID(id string) string {
	escaped := func(c rune) bool { return c <= ' ' || c >= 0x7f || c == '.' || c == '%' }
	if !strings.ContainsFunc(id, escaped) {
		return id
	}
	var b []byte
	for _, c := range []byte(id) {
		if escaped(rune(c)) {
			b = fmt.Appendf(b, "%%%02X", c)
		} else {
			b = append(b, c)
		}
	}
	return string(b)
}
