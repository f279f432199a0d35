package webhook

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"hash/fnv"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/hookferry/analytics/check"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/webhook/internal/schedule"
	"github.com/hookferry/analytics/webhook/internal/wire"
)

// destinations finds destinations by their ids.
type directory struct {
	config *Config
	static map[string]*target // of Config.Destinations, by id; does not change after New
	// nothing stands for each destination whose Lookup returns ErrTakesNothing. It has no endpoint.
	nothing *target
}

// known returns an error if Forward refuses events for a destination. It does not call
// Config.Lookup: a worker does that before each attempt, and so finds unknown destinations.
func (ds *directory) known(id string) error {
	if id == "" || len(id) > maxID {
		return fmt.Errorf("%w: an id of %d bytes, 1 to %d are allowed", ErrUnknownDestination, len(id), maxID)
	}
	if ds.config.Lookup == nil && ds.static[id] == nil {
		return fmt.Errorf("%w %q", ErrUnknownDestination, id)
	}
	return nil
}

// resolve returns the target for the present settings of the destination: l.target if they have not
// changed. If the destination cannot be used, it returns an error, and the Hold of its deliveries.
func (ds *directory) resolve(ctx context.Context, l *lane) (*target, Hold, error) {
	t := ds.static[l.ID]
	if ds.config.Lookup != nil {
		ctx, cancel := context.WithTimeout(ctx, ds.config.Timeout)
		defer cancel()
		d, hold, err := ds.ask(ctx, l.ID)
		switch {
		case errors.Is(err, ErrTakesNothing):
			return ds.nothing, "", nil
		case err != nil:
			return nil, hold, err
		}
		if t = l.target.Load(); t == nil || t.source != d {
			if d.ID != l.ID {
				return nil, HoldInvalid, fmt.Errorf("webhook: Lookup of %q returned the destination %q", l.ID, d.ID)
			}
			if t, err = compile(d, ds.config, t); err != nil {
				return nil, HoldInvalid, fmt.Errorf("webhook: destination is not valid: %w", err)
			}
		}
	}
	switch {
	case t == nil:
		return nil, HoldUnknown, ErrUnknownDestination
	case t.source.Disabled:
		return nil, HoldDisabled, errors.New("webhook: destination is disabled")
	}
	return t, "", nil
}

// ask calls Config.Lookup. With an error, it returns the Hold that this error stands for, which is
// none for ErrTakesNothing.
func (ds *directory) ask(ctx context.Context, id string) (d *Destination, hold Hold, err error) {
	err = noPanic("Lookup", func() (err error) {
		d, err = ds.config.Lookup(ctx, id)
		return err
	})
	switch {
	case errors.Is(err, ErrTakesNothing):
		return nil, "", err
	case errors.Is(err, ErrUnknownDestination):
		return nil, HoldUnknown, err
	case err != nil:
		return nil, HoldLookup, &lookupError{err}
	case d == nil:
		return nil, HoldUnknown, ErrUnknownDestination
	}
	return d, "", nil
}

// A lookupError is an error of Config.Lookup.
type lookupError struct{ err error }

func (e *lookupError) Error() string { return "webhook: look-up failed: " + e.err.Error() }

func (e *lookupError) Unwrap() error { return e.err }

// A target is a Destination that was checked and made ready for attempts. It does not change.
type target struct {
	source    *Destination // the Destination that was compiled
	tls       *tls.Config  // nil: that of the client
	timeout   time.Duration
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

// compile is makeTarget with the faults as an error.
func compile(d *Destination, c *Config, was *target) (*target, error) {
	t, wrong := makeTarget(d, c, was)
	return t, configError(wrong)
}

// makeTarget checks d against the limits of c and makes a target of it. The argument was is the
// earlier target of the same destination, or nil. If it trusts the same authorities, the new target
// uses its connections.
func makeTarget(d *Destination, c *Config, was *target) (*target, check.Faults) {
	var wrong check.Faults
	n := len(d.Endpoints)
	_, known := schedules[d.Schedule]
	wrong.Refuse(d.ID == "" || len(d.ID) > maxID, "ID", "has %d bytes; 1 to %d are allowed", len(d.ID), maxID)
	wrong.Refuse(n == 0 || n > MaxEndpoints, "Endpoints", "%d given; 1 to %d are allowed", n, MaxEndpoints)
	t := &target{source: d, timeout: d.Timeout, limits: schedule.Limits{Slots: d.MaxConcurrent, Window: d.Window}}
	check.Range(&wrong, "Timeout", &t.timeout, 0, c.Timeout, c.Timeout)
	check.Range(&wrong, "Window", &t.limits.Window, 0, c.Window, c.Window)
	check.Least(&wrong, "MaxConcurrent", &t.limits.Slots, 0, c.MaxConcurrent)
	wrong.Refuse(!known, "Schedule", `is not known; "eager", "patient" and "" (the default) are allowed`)
	checkPatterns("Filter.Include", d.Filter.Include, &wrong)
	checkPatterns("Filter.Exclude", d.Filter.Exclude, &wrong)
	wrong.Refuse(c.Lookup != nil && !c.LookupFilters && d.filters(), "Filter", "or Transform is set, but Config.LookupFilters is not")
	if d.TLS != nil {
		d.TLS.check(&wrong)
		t.tls = d.TLS.config(c.TLSClientConfig)
		if was != nil && was.tls != nil && was.tls.RootCAs.Equal(t.tls.RootCAs) {
			t.tls.RootCAs = was.tls.RootCAs // package wire compares the pointers
		}
	}
	t.limits.Interval, t.limits.Burst = checkRate(d.MaxRate, d.MaxBurst, &wrong)
	if d.Secret != "" {
		var err error
		t.signer, err = signature.NewSigner(d.Secret)
		wrong.Refuse(err != nil, "Secret", "%v", err)
	}
	n = len(d.StandardSecrets)
	wrong.Refuse(n > MaxStandardSecrets, "StandardSecrets", "%d given; at most %d are allowed", n, MaxStandardSecrets)
	for i, s := range d.StandardSecrets {
		_, err := signature.NewStandardSigner(s)
		wrong.Refuse(err != nil, fmt.Sprintf("StandardSecrets[%d]", i), `is not "whsec_" and the base64 of 24 to 64 bytes, nor "whsk_" and that of an Ed25519 key`)
	}
	t.standard, _ = signature.NewStandardSigner(d.StandardSecrets...) // nil without secrets
	for i := range d.Endpoints {
		field := fmt.Sprintf("Endpoints[%d]", i)
		e := compileEndpoint(field, &d.Endpoints[i], c.ServiceName, &wrong)
		if e == nil {
			continue
		}
		twice := slices.ContainsFunc(t.endpoints, func(other *endpoint) bool { return other.hash == e.hash })
		wrong.Refuse(twice, field+".URL", "is given twice")
		e.target = t
		e.wire = wire.NewTarget(e.url, e.header, t.tls)
		e.wire.NetHTTP = d.NetHTTP
		t.endpoints = append(t.endpoints, e)
	}
	wrong.Sort(*d)
	return t, wrong
}

// compileEndpoint makes an endpoint of given, whose path is field, or adds its faults to wrong.
func compileEndpoint(field string, given *Endpoint, serviceName string, wrong *check.Faults) *endpoint {
	before := len(*wrong)
	u, problem := checkURL(given.URL)
	wrong.Add(field+".URL", problem)
	h := http.Header{
		"User-Agent":   {serviceName + "/1.0"},
		"Content-Type": {"application/json"},
	}
	secrets := addHeaders(h, field+".Headers", given.Headers, wrong)
	if len(*wrong) > before {
		return nil
	}
	secrets = append(secrets, u.RawQuery)
	secrets = append(secrets, queryValues(u.RawQuery)...)
	if u.User != nil {
		password, _ := u.User.Password()
		basic := base64.StdEncoding.EncodeToString([]byte(u.User.Username() + ":" + password))
		if h["Authorization"] == nil {
			h["Authorization"] = []string{"Basic " + basic}
		}
		secrets = append(secrets, basic, u.User.Username(), password)
	}
	hash := fnv.New64a()
	hash.Write([]byte(given.URL))
	u.Fragment, u.RawFragment = "", ""
	shown := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}
	return &endpoint{
		url: u, raw: given.URL, hash: hash.Sum64(), name: shown.String(), header: h, secrets: redactable(secrets),
		traced: h[headerTraceParent] != nil || h[headerTraceState] != nil,
	}
}

// queryValues returns the values of a query that may be secrets, both as they are and unescaped.
// Values of less than eight bytes are more likely settings, which an answer may contain by chance.
func queryValues(query string) (values []string) {
	for pair := range strings.SplitSeq(query, "&") {
		_, value, named := strings.Cut(pair, "=")
		if !named {
			value = pair
		}
		if len(value) < 8 {
			continue
		}
		values = append(values, value)
		if text, err := url.QueryUnescape(value); err == nil && text != value {
			values = append(values, text)
		}
	}
	return values
}
