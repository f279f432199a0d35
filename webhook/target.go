package webhook

import (
	"encoding/base64"
	"fmt"
	"hash/fnv"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/webhook/internal/wire"
)

// A target is a Destination made ready for attempts. It does not change.
type target struct {
	disabled  bool
	limit     int
	interval  time.Duration // between attempts; 0: none
	burst     int
	tls       *TLS // nil: as all
	endpoints []*endpoint
}

type endpoint struct {
	url      *url.URL
	hash     uint64                    // names the URL in Delivery.Closed
	name     string                    // the URL without what may be secret, for logs and Attempt
	header   http.Header               // of each request; the signatures are not in it
	wire     *wire.Target              // nil until there is a forwarder
	signer   *signature.Signer         // nil: not signed
	standard *signature.StandardSigner // nil: not signed by Standard Webhooks
	traced   bool                      // header has a trace of its own

	// secrets are texts of the request that are not to be kept should the
	// endpoint send them back, the longest first: one may be in another.
	secrets []string
}

// compile checks d and makes it ready.
func compile(d *Destination, serviceName string, maxConcurrent int) (*target, error) {
	if d.ID == "" || len(d.ID) > maxID {
		return nil, refuse("ID", "has %d bytes; 1 to %d are allowed", len(d.ID), maxID)
	}
	if n := len(d.Endpoints); n == 0 || n > MaxEndpoints {
		return nil, refuse("Endpoints", "%d given; 1 to %d are allowed", n, MaxEndpoints)
	}
	if d.MaxConcurrent < 0 {
		return nil, refuse("MaxConcurrent", "%d is negative", d.MaxConcurrent)
	}
	t := &target{disabled: d.Disabled, limit: d.MaxConcurrent, tls: d.TLS}
	if d.TLS != nil {
		if err := d.TLS.check(); err != nil {
			return nil, err
		}
	}
	if t.limit == 0 {
		t.limit = maxConcurrent
	}
	var err error
	if t.interval, t.burst, err = checkRate(d.MaxRate, d.MaxBurst); err != nil {
		return nil, err
	}
	var signer *signature.Signer
	if d.Secret != "" {
		if signer, err = signature.NewSigner(d.Secret); err != nil {
			return nil, refuse("Secret", "%v", err)
		}
	}
	if len(d.StandardSecrets) > MaxStandardSecrets {
		return nil, refuse("StandardSecrets", "%d given; at most %d are allowed", len(d.StandardSecrets), MaxStandardSecrets)
	}
	var standard *signature.StandardSigner
	if len(d.StandardSecrets) > 0 {
		for i, s := range d.StandardSecrets {
			if _, err := signature.NewStandardSigner(s); err != nil {
				return nil, refuse(fmt.Sprintf("StandardSecrets[%d]", i), `is not "whsec_" and the base64 of 24 to 64 bytes`)
			}
		}
		standard, _ = signature.NewStandardSigner(d.StandardSecrets...)
	}
	for i := range d.Endpoints {
		field := fmt.Sprintf("Endpoints[%d]", i)
		e, err := compileEndpoint(&d.Endpoints[i], serviceName)
		if err != nil {
			return nil, under(field, err)
		}
		for _, other := range t.endpoints {
			if other.hash == e.hash {
				return nil, refuse(field+".URL", "is given twice")
			}
		}
		e.signer, e.standard = signer, standard
		t.endpoints = append(t.endpoints, e)
	}
	return t, nil
}

func compileEndpoint(e *Endpoint, serviceName string) (*endpoint, error) {
	u, err := checkURL("URL", e.URL)
	if err != nil {
		return nil, err
	}
	if len(e.Headers) > MaxHeaders {
		return nil, refuse("Headers", "%d given; at most %d are allowed", len(e.Headers), MaxHeaders)
	}
	h := http.Header{
		"User-Agent":   {serviceName + "/1.0"},
		"Content-Type": {"application/json"},
	}
	secrets := append(queryValues(u.RawQuery), u.RawQuery)
	if u.User != nil {
		password, _ := u.User.Password()
		basic := base64.StdEncoding.EncodeToString([]byte(u.User.Username() + ":" + password))
		h["Authorization"] = []string{"Basic " + basic}
		secrets = append(secrets, basic, u.User.Username(), password)
	}
	seen := make(map[string]bool, len(e.Headers))
	for name, value := range e.Headers {
		field := fmt.Sprintf("Headers[%q]", name)
		if err := checkHeader(field, name, value); err != nil {
			return nil, err
		}
		canonical := http.CanonicalHeaderKey(name)
		if forbiddenHeaders[canonical] {
			return nil, refuse(field, "may not be replaced")
		}
		if seen[canonical] {
			return nil, refuse(field, "is given twice")
		}
		seen[canonical] = true
		h[canonical] = []string{value}
		secrets = append(secrets, value)
		if _, credentials, ok := strings.Cut(value, " "); ok && canonical == "Authorization" {
			secrets = append(secrets, credentials)
		}
	}
	secrets = slices.DeleteFunc(secrets, func(s string) bool { return len(s) < minSecret })
	slices.SortFunc(secrets, func(a, b string) int { return len(b) - len(a) })
	f := fnv.New64a()
	f.Write([]byte(e.URL))
	u.Fragment, u.RawFragment = "", ""
	shown := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}
	return &endpoint{url: u, hash: f.Sum64(), name: shown.String(), header: h, secrets: secrets, traced: h[headerTraceParent] != nil || h[headerTraceState] != nil}, nil
}

// minQueryValue is the bytes of a query's value that is taken for a secret. A
// shorter one is a setting, and may be a word of any answer.
const minQueryValue = 8

// queryValues returns the values of a query that may be secrets, as they are
// sent and as they are read.
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
