package webhook

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"hash/fnv"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/webhook/internal/schedule"
	"github.com/hookferry/analytics/webhook/internal/wire"
)

// A target is a Destination that was checked and made ready for attempts. It does not change.
type target struct {
	pace
	source    *Destination // the Destination that was compiled
	limits    schedule.Limits
	endpoints []*endpoint
}

// An endpoint is a checked Endpoint, with the settings of its destination that its requests need.
type endpoint struct {
	url      *url.URL
	hash     uint64      // names the URL in Delivery.Closed
	name     string      // the URL without user, query and fragment, for logs and Attempt
	header   http.Header // header of each request, without the signatures
	timeout  time.Duration
	wire     *wire.Target
	signer   *signature.Signer         // nil: no X-Signature
	standard *signature.StandardSigner // nil: no headers of Standard Webhooks
	traced   bool                      // header has a static traceparent or tracestate

	authorize func(ctx context.Context, url string) (map[string]string, error) // nil: no more headers
	raw       string                                                           // the URL as it was given, for authorize

	// secrets are the secret texts of a request. They are redacted if the endpoint sends them back.
	// The longest come first, because a secret may contain a shorter one.
	secrets []string
}

// compile checks d against the limits of c and makes a target of it, or returns all faults of d.
func compile(d *Destination, c *Config) (*target, faults) {
	var wrong faults
	n := len(d.Endpoints)
	_, known := schedules[d.Schedule]
	wrong.refuse(d.ID == "" || len(d.ID) > maxID, "ID", "has %d bytes; 1 to %d are allowed", len(d.ID), maxID)
	wrong.refuse(n == 0 || n > MaxEndpoints, "Endpoints", "%d given; 1 to %d are allowed", n, MaxEndpoints)
	wrong.refuse(d.MaxConcurrent < 0, "MaxConcurrent", "%d is negative", d.MaxConcurrent)
	wrong.refuse(d.Timeout < 0 || d.Timeout > c.Timeout, "Timeout", "%v is given; up to %v is allowed", d.Timeout, c.Timeout)
	wrong.refuse(d.Window < 0 || d.Window > c.Window, "Window", "%v is given; up to %v is allowed", d.Window, c.Window)
	wrong.refuse(!known, "Schedule", `is not known; "eager", "patient" and "" (the default) are allowed`)
	wrong.addUnder("Filter", d.Filter.faults())
	if c.Lookup != nil && !c.LookupFilters {
		wrong.refuse(d.Transform != nil, "Transform", "is set, but Config.LookupFilters is not")
		wrong.refuse(d.Transform == nil && d.filters(), "Filter", "is set, but Config.LookupFilters is not")
	}
	var ownTLS *tls.Config // nil: that of the client
	if d.TLS != nil {
		wrong.add(d.TLS.check())
		ownTLS = d.TLS.config(c.TLSClientConfig)
	}
	t := &target{source: d, pace: pace{cmp.Or(d.Timeout, c.Timeout), cmp.Or(d.Window, c.Window), d.Schedule}}
	interval, burst, err := checkRate(d.MaxRate, d.MaxBurst)
	wrong.add(err)
	t.limits = schedule.Limits{Slots: cmp.Or(d.MaxConcurrent, c.MaxConcurrent), Window: t.window, Interval: interval, Burst: burst}

	var signer *signature.Signer
	if d.Secret != "" {
		signer, err = signature.NewSigner(d.Secret)
		wrong.refuse(err != nil, "Secret", "%v", err)
	}
	n = len(d.StandardSecrets)
	wrong.refuse(n > MaxStandardSecrets, "StandardSecrets", "%d given; at most %d are allowed", n, MaxStandardSecrets)
	for i, s := range d.StandardSecrets {
		_, err := signature.NewStandardSigner(s)
		wrong.refuse(err != nil, fmt.Sprintf("StandardSecrets[%d]", i), `is not "whsec_" and the base64 of 24 to 64 bytes, nor "whsk_" and that of an Ed25519 key`)
	}
	standard, _ := signature.NewStandardSigner(d.StandardSecrets...) // nil without secrets
	for i := range d.Endpoints {
		field := fmt.Sprintf("Endpoints[%d]", i)
		e, faults := compileEndpoint(&d.Endpoints[i], c.ServiceName)
		wrong.addUnder(field, faults)
		if faults != nil {
			continue
		}
		twice := slices.ContainsFunc(t.endpoints, func(other *endpoint) bool { return other.hash == e.hash })
		wrong.refuse(twice, field+".URL", "is given twice")
		e.timeout, e.signer, e.standard, e.authorize = t.timeout, signer, standard, d.Authorize
		e.wire = wire.NewTarget(e.url, e.header, ownTLS)
		e.wire.NetHTTP = d.NetHTTP
		t.endpoints = append(t.endpoints, e)
	}
	if wrong != nil {
		return nil, wrong
	}
	return t, nil
}

// compileEndpoint checks e and makes an endpoint of it, or returns all faults of e.
func compileEndpoint(e *Endpoint, serviceName string) (*endpoint, faults) {
	var wrong faults
	u, err := checkURL("URL", e.URL)
	wrong.add(err)
	h := http.Header{
		"User-Agent":   {serviceName + "/1.0"},
		"Content-Type": {"application/json"},
	}
	secrets := addHeaders(h, "Headers", e.Headers, &wrong)
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
	hash := fnv.New64a()
	hash.Write([]byte(e.URL))
	u.Fragment, u.RawFragment = "", ""
	shown := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}
	return &endpoint{
		url: u, raw: e.URL, hash: hash.Sum64(), name: shown.String(), header: h, secrets: redactable(secrets),
		traced: h[headerTraceParent] != nil || h[headerTraceState] != nil,
	}, nil
}

// queryValues returns the values of a query that may be secrets, both as they are and unescaped. It
// leaves out values of less than eight bytes: they are more likely settings, and an answer may
// contain them by chance.
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
