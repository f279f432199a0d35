package webhook

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/hookferry/analytics/check"
	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/webhook/internal/wire"
)

// clients make the requests. The guard lets more addresses pass for destinations that are Trusted, so
// these have connections of their own.
type clients struct{ trusted, others *wire.Client }

// newClients returns clients whose requests all end with the context attempts.
func newClients(c *Config, attempts context.Context) *clients {
	return &clients{
		trusted: newClient(c, &guard{allow: c.AllowAddresses, operator: true}, attempts),
		others:  newClient(c, &guard{allow: c.AllowAddresses}, attempts),
	}
}

// newClient returns an HTTP client. The guard checks its connections, unless a proxy or
// Config.DialContext makes them.
func newClient(c *Config, g *guard, attempts context.Context) *wire.Client {
	if c.Proxy != nil {
		g = &guard{allow: everywhere} // the operator wrote the proxy's name
	}
	dial := g.dial
	if c.DialContext != nil {
		dial = c.DialContext
	}
	timeout, _ := c.Retries.bounds(c)
	return wire.New(wire.Config{
		Context: attempts,
		Dial:    dial,
		Proxy:   c.Proxy,
		TLS:     (*TLS)(nil).config(c.TLSClientConfig),
		Timeout: timeout,
		MaxIdle: 2 * c.MaxInFlight,
	})
}

// of returns the client for requests to e.
func (cs *clients) of(e *endpoint) *wire.Client {
	if e.target.source.Trusted {
		return cs.trusted
	}
	return cs.others
}

func (cs *clients) resent() int64 { return cs.trusted.Resent() + cs.others.Resent() }

// close closes all connections. The caller must wait for all requests first.
func (cs *clients) close() {
	cs.trusted.Close()
	cs.others.Close()
}

// addHeaders adds the headers in given, whose path is field, to header, and returns their secret
// texts. It adds to wrong a fault for each one that is not allowed.
func addHeaders(header http.Header, field string, given map[string]string, wrong *check.Faults) (secrets []string) {
	wrong.Refuse(len(given) > maxHeaders, field, "%d given; at most %d are allowed", len(given), maxHeaders)
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
	if !strings.ContainsFunc(id, escapedInID) {
		return id
	}
	return string(appendStandardID(nil, id))
}

func escapedInID(c rune) bool { return c <= ' ' || c >= 0x7f || c == '.' || c == '%' }

func appendStandardID(dst []byte, id string) []byte {
	for i := range len(id) {
		if c := id[i]; escapedInID(rune(c)) {
			dst = fmt.Appendf(dst, "%%%02X", c)
		} else {
			dst = append(dst, c)
		}
	}
	return dst
}
