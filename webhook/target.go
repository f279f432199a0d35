package webhook

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/webhook/internal/schedule"
	"github.com/hookferry/analytics/webhook/internal/wire"
)

// A target is a checked Destination, ready for attempts. It does not change.
type target struct {
	disabled bool
	limits   schedule.Limits
	tls      *TLS // nil: the same as the forwarder
	netHTTP  bool
	pace
	endpoints []*endpoint
}

type endpoint struct {
	url      *url.URL
	hash     uint64                    // names the URL in Delivery.Closed
	name     string                    // the URL without what may be secret, for logs and Attempt
	header   http.Header               // of each request; the signatures are not in it
	timeout  time.Duration             // zero: that of the forwarder
	wire     *wire.Target              // nil until there is a forwarder
	signer   *signature.Signer         // nil: not signed
	standard *signature.StandardSigner // nil: not signed by Standard Webhooks
	traced   bool                      // header has a trace of its own

	authorize func(ctx context.Context, url string, header http.Header) error // nil: no more headers
	raw       string                                                          // the URL as it was given, for authorize

	// secrets are texts of the request that are redacted if the endpoint sends
	// them back. The longest come first, because one may contain another.
	secrets []string
}

// compile checks d and makes a target of it. Its error is a *ConfigError for
// everything that is wrong, joined if there are several.
func compile(d *Destination, serviceName string, maxConcurrent int) (*target, error) {
	var wrong faults
	if d.ID == "" || len(d.ID) > maxID {
		wrong.add(refuse("ID", "has %d bytes; 1 to %d are allowed", len(d.ID), maxID))
	}
	if n := len(d.Endpoints); n == 0 || n > MaxEndpoints {
		wrong.add(refuse("Endpoints", "%d given; 1 to %d are allowed", n, MaxEndpoints))
	}
	if d.MaxConcurrent < 0 {
		wrong.add(refuse("MaxConcurrent", "%d is negative", d.MaxConcurrent))
	}
	t := &target{disabled: d.Disabled, limits: schedule.Limits{Slots: d.MaxConcurrent}, tls: d.TLS, netHTTP: d.NetHTTP,
		pace: pace{d.Timeout, d.Window, d.Schedule}}
	if _, _, known := d.Schedule.bounds(); !known {
		wrong.add(refuse("Schedule", "is none; there are eager, patient and, if it is empty, the default"))
	}
	for _, err := range split(d.Filter.Validate()) {
		wrong.add(under("Filter", err))
	}
	if d.TLS != nil {
		wrong.add(d.TLS.check())
	}
	if t.limits.Slots == 0 {
		t.limits.Slots = maxConcurrent
	}
	var err error
	t.limits.Interval, t.limits.Burst, err = checkRate(d.MaxRate, d.MaxBurst)
	wrong.add(err)
	var signer *signature.Signer
	if d.Secret != "" {
		if signer, err = signature.NewSigner(d.Secret); err != nil {
			wrong.add(refuse("Secret", "%v", err))
		}
	}
	if len(d.StandardSecrets) > MaxStandardSecrets {
		wrong.add(refuse("StandardSecrets", "%d given; at most %d are allowed", len(d.StandardSecrets), MaxStandardSecrets))
	}
	var standard *signature.StandardSigner
	if len(d.StandardSecrets) > 0 {
		for i, s := range d.StandardSecrets {
			if _, err := signature.NewStandardSigner(s); err != nil {
				wrong.add(refuse(fmt.Sprintf("StandardSecrets[%d]", i), `is not "whsec_" and the base64 of 24 to 64 bytes, nor "whsk_" and that of an Ed25519 key`))
			}
		}
		standard, _ = signature.NewStandardSigner(d.StandardSecrets...)
	}
	for i := range d.Endpoints {
		field := fmt.Sprintf("Endpoints[%d]", i)
		e, faults := compileEndpoint(&d.Endpoints[i], serviceName)
		for _, err := range faults {
			wrong.add(under(field, err))
		}
		if faults != nil {
			continue
		}
		for _, other := range t.endpoints {
			if other.hash == e.hash {
				wrong.add(refuse(field+".URL", "is given twice"))
				break
			}
		}
		e.signer, e.standard, e.timeout = signer, standard, d.Timeout
		e.authorize, e.raw = d.Authorize, d.Endpoints[i].URL
		t.endpoints = append(t.endpoints, e)
	}
	if len(wrong) > 0 {
		return nil, wrong.join()
	}
	return t, nil
}

// faults are the *ConfigErrors of one destination.
type faults []error

func (f *faults) add(err error) {
	if err != nil {
		*f = append(*f, err)
	}
}

func (f faults) join() error {
	switch len(f) {
	case 0:
		return nil
	case 1:
		return f[0]
	}
	return errors.Join(f...)
}

// split takes apart what join returned.
func split(err error) faults {
	switch err := err.(type) {
	case nil:
		return nil
	case interface{ Unwrap() []error }:
		return err.Unwrap()
	}
	return faults{err}
}

// compileEndpoint makes an endpoint of e, or returns everything that is wrong with it.
func compileEndpoint(e *Endpoint, serviceName string) (*endpoint, faults) {
	var wrong faults
	u, err := checkURL("URL", e.URL)
	wrong.add(err)
	if len(e.Headers) > MaxHeaders {
		wrong.add(refuse("Headers", "%d given; at most %d are allowed", len(e.Headers), MaxHeaders))
	}
	h := http.Header{
		"User-Agent":   {serviceName + "/1.0"},
		"Content-Type": {"application/json"},
	}
	var secrets []string
	for _, name := range slices.Sorted(maps.Keys(e.Headers)) {
		value, field, canonical := e.Headers[name], fmt.Sprintf("Headers[%q]", name), http.CanonicalHeaderKey(name)
		switch err := checkHeader(field, name, value); {
		case err != nil:
			wrong.add(err)
		case forbiddenHeaders[canonical]:
			wrong.add(refuse(field, "may not be replaced"))
		case len(h[canonical]) > 0:
			wrong.add(refuse(field, "is given twice"))
		}
		h[canonical] = []string{value}
		secrets = append(secrets, headerSecrets(canonical, value)...)
	}
	if wrong != nil {
		return nil, wrong
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
	f := fnv.New64a()
	f.Write([]byte(e.URL))
	u.Fragment, u.RawFragment = "", ""
	shown := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}
	return &endpoint{url: u, hash: f.Sum64(), name: shown.String(), header: h, secrets: redactable(secrets), traced: h[headerTraceParent] != nil || h[headerTraceState] != nil}, nil
}

// minQueryValue is the length, in bytes, from which the value of a query counts as a
// secret. A shorter one is a setting, and may be a word of any answer.
const minQueryValue = 8

// queryValues returns the values of a query that may be secrets, escaped and
// unescaped.
func queryValues(query string) (values []string) {
	for pair := range strings.SplitSeq(query, "&") {
		_, value, named := strings.Cut(pair, "=")
		if !named {
			value = pair
		}
		if len(value) < minQueryValue {
			continue
		}
		values = append(values, value)
		if text, err := url.QueryUnescape(value); err == nil && text != value {
			values = append(values, text)
		}
	}
	return values
}
