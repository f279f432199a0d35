package webhook

import (
	"encoding/base64"
	"fmt"
	"hash/fnv"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/hookferry/analytics/check"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/webhook/internal/schedule"
	"github.com/hookferry/analytics/webhook/internal/wire"
)

// makeTarget checks d against the limits of c and makes a target of it. The target that the
// destination had before is earlier, or nil. If it trusts the same authorities, the new target uses
// its connections.
func makeTarget(d *Destination, c *Config, earlier *target) (*target, check.Faults) {
	var wrong check.Faults
	n := len(d.Endpoints)
	wrong.Refuse(d.ID == "" || len(d.ID) > maxID, "ID", "has %d bytes; 1 to %d are allowed", len(d.ID), maxID)
	wrong.Refuse(len(d.Tenant) > maxID, "Tenant", "has %d bytes, the limit is %d", len(d.Tenant), maxID)
	wrong.Refuse(n == 0 || n > maxEndpoints, "Endpoints", "%d given; 1 to %d are allowed", n, maxEndpoints)
	t := &target{source: d, timeout: d.Timeout, retries: d.Retries, schedule: d.Schedule, limits: schedule.Limits{Slots: d.MaxConcurrent, Window: d.Window}}
	if t.retries.check("Retries", &wrong); t.retries == nil {
		t.retries = c.Retries
	}
	if t.schedule == ScheduleDefault && t.retries != nil {
		t.schedule = t.retries.Schedule
	}
	timeout, window := t.retries.bounds(c)
	check.Range(&wrong, "Timeout", &t.timeout, 0, timeout, timeout)
	checkWindow(&wrong, &t.limits.Window, window)
	check.Least(&wrong, "MaxConcurrent", &t.limits.Slots, 0, c.MaxConcurrent)
	d.Schedule.check("Schedule", &wrong)
	d.Order.check("Order", &wrong)
	checkPatterns("Filter.Include", d.Filter.Include, &wrong)
	checkPatterns("Filter.Exclude", d.Filter.Exclude, &wrong)
	if d.TLS != nil {
		d.TLS.check(&wrong)
		t.tls = d.TLS.config(c.TLSClientConfig)
		if earlier != nil && earlier.tls != nil && earlier.tls.RootCAs.Equal(t.tls.RootCAs) {
			t.tls.RootCAs = earlier.tls.RootCAs // package wire compares the pointers
		}
	}
	t.limits.Interval, t.limits.Burst = checkRate(d.MaxRate, d.MaxBurst, &wrong)
	t.limits.Batch = d.Batch.check(n, &wrong)
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

// compile is makeTarget with the faults as an error.
func compile(d *Destination, c *Config, earlier *target) (*target, error) {
	t, wrong := makeTarget(d, c, earlier)
	return t, configError(wrong)
}
