package portal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/tenants"
	"github.com/hookferry/analytics/webhook"
)

// An eventType is a type of the catalogue.
type eventType struct {
	Type        string          `json:"type"`
	Description string          `json:"description,omitempty"`
	Example     json.RawMessage `json:"example"`
}

// An endpoint is a destination of the tenant. Its id is that of the destination without the tenant.
type endpoint struct {
	ID          string   `json:"id"`
	URL         string   `json:"url"`                // without a password
	MoreURLs    []string `json:"moreUrls,omitempty"` // which the program has given it
	Description string   `json:"description"`
	Types       []string `json:"types"` // empty for all
	Enabled     bool     `json:"enabled"`
	Version     uint64   `json:"version,string"`
	// OldSecrets has the times when old secrets stop signing; only in the answer about one endpoint.
	OldSecrets []time.Time `json:"oldSecrets,omitempty"`
	Batch      *batch      `json:"batch,omitempty"` // nil if each event has a request of its own
	state
}

// A batch says how many events a request has at most. The program decides on it.
type batch struct {
	MaxEvents int    `json:"maxEvents"`
	MaxBytes  int    `json:"maxBytes,omitempty"` // of the body
	MaxWait   string `json:"maxWait,omitempty"`  // for more events, such as 1s
}

func getSettings(q *request) (any, error) {
	c := &q.h.config
	allowed := []Action{}
	for _, a := range actions {
		if c.may(a) {
			allowed = append(allowed, a)
		}
	}
	return map[string]any{
		"name": c.title(), "logo": c.Logo != nil, "theme": c.Theme, "words": c.Words, "actions": allowed,
		"overlap": int(c.Overlap / time.Second), "schemes": c.Schemes, "ports": c.Ports, "catalogue": c.Catalogue != nil,
	}, nil
}

func getTypes(q *request) (any, error) { return map[string]any{"items": q.h.types}, nil }

func listEndpoints(q *request) (any, error) {
	size, err := q.pageSize()
	if err != nil {
		return nil, err
	}
	after := q.r.URL.Query().Get("after")
	if after != "" && !isName(after) {
		return nil, errNotFound
	}
	list := struct {
		Items []endpoint `json:"items"`
		After string     `json:"after,omitempty"`
	}{Items: []endpoint{}}
	var all []tenants.Destination
	var ids []string
	for d, err := range q.h.config.Tenants.List(q.r.Context(), q.tenant, q.destination(after)) {
		if err != nil {
			return nil, err
		}
		if len(all) == size {
			_, list.After, _ = strings.Cut(ids[size-1], "/")
			break
		}
		all, ids = append(all, d), append(ids, d.ID)
	}
	stats, err := q.stats(ids...)
	for i := range all {
		list.Items = append(list.Items, q.endpoint(&all[i], stats[ids[i]]))
	}
	return list, err
}

// endpoint returns what a customer is shown of a destination.
func (q *request) endpoint(d *tenants.Destination, stats webhook.DestinationStats) endpoint {
	e := endpoint{
		ID: strings.TrimPrefix(d.ID, q.tenant+"/"), URL: shown(d.Endpoints[0].URL), Description: d.Name,
		Types: append([]string{}, d.Filter.Include...), Enabled: !d.Disabled && !disabledByForwarder(&stats), Version: d.Version, state: stateOf(d, stats),
	}
	if slices.Contains(e.Types, "*") {
		e.Types = []string{}
	}
	if b := d.Batch; b.MaxEvents > 0 {
		e.Batch = &batch{MaxEvents: b.MaxEvents, MaxBytes: b.MaxBytes}
		if b.MaxWait > 0 {
			e.Batch.MaxWait = b.MaxWait.String()
		}
	}
	for _, more := range d.Endpoints[1:] {
		e.MoreURLs = append(e.MoreURLs, shown(more.URL))
	}
	return e
}

func disabledByForwarder(s *webhook.DestinationStats) bool {
	return s.Held != nil && s.Held.Kind == webhook.HoldDisabled && s.Held.Reason != ""
}

// shown is a URL without its password.
func shown(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.User == nil {
		return address
	}
	return u.Redacted()
}

// destination returns the id in the directory of an endpoint with a name.
func (q *request) destination(name string) string { return q.tenant + "/" + name }

// isName reports whether an endpoint could have a name. Nothing else gets into an id.
func isName(name string) bool {
	return name != "" && len(name) <= 64 && strings.Trim(name, "0123456789abcdefghijklmnopqrstuvwxyz") == ""
}

// named returns the destination that a path names.
func (q *request) named() (tenants.Destination, error) {
	name := q.r.PathValue("endpoint")
	if !isName(name) {
		return tenants.Destination{}, errNotFound
	}
	return q.h.config.Tenants.Get(q.r.Context(), q.destination(name))
}

func getEndpoint(q *request) (any, error) {
	d, err := q.named()
	if err != nil {
		return nil, err
	}
	return q.whole(&d)
}

// whole returns an endpoint with everything that a customer is shown of it. With an error, it lacks
// what could not be read.
func (q *request) whole(d *tenants.Destination) (endpoint, error) {
	stats, err := q.stats(d.ID)
	e := q.endpoint(d, stats[d.ID])
	var failed error
	e.OldSecrets, failed = q.h.config.Tenants.OldSecrets(q.r.Context(), d.ID)
	return e, errors.Join(err, failed)
}

// afterwards logs an error of what follows a change. The change is made, so the answer says that.
func (q *request) afterwards(err error) {
	if err != nil {
		q.h.config.Logger.Error("portal: a change was made, but not all that follows it; the customer was told that it was made",
			"tenant", q.tenant, "method", q.r.Method, "error", err)
	}
}

// A form has the settings that a customer sends. A setting that is nil stays as it is.
type form struct {
	URL         *string   `json:"url"`
	Description *string   `json:"description"`
	Types       *[]string `json:"types"`
	Enabled     *bool     `json:"enabled"`
	Version     string    `json:"version"` // the one that is changed; not for a new endpoint
}

func createEndpoint(q *request) (any, error) {
	var f form
	if err := q.read(&f); err != nil {
		return nil, err
	}
	if f.URL == nil {
		return nil, invalid("url", "is required")
	}
	d := tenants.Destination{Tenant: q.tenant, Settings: webhook.Settings{Endpoints: []webhook.Endpoint{{}}}}
	if err := q.fill(&d, &f); err != nil {
		return nil, err
	}
	d, secret, err := q.h.config.Tenants.Create(q.r.Context(), d, q.actor)
	if err != nil {
		return nil, err
	}
	q.h.config.Forwarder.Recheck(q.tenant, d.ID)
	q.changed(ActionCreate, d.ID, 0)
	return created{map[string]any{"endpoint": q.endpoint(&d, webhook.DestinationStats{}), "secret": secret.Reveal()}}, nil
}

// fill puts the settings of a form into a destination.
func (q *request) fill(d *tenants.Destination, f *form) error {
	if f.URL != nil && *f.URL != shown(d.Endpoints[0].URL) {
		if err := q.h.config.checkURL(*f.URL); err != nil {
			return err
		}
		// The static headers, which may be secret, were meant for the earlier URL.
		d.Endpoints = slices.Clone(d.Endpoints)
		d.Endpoints[0] = webhook.Endpoint{URL: *f.URL}
	}
	if f.Description != nil {
		d.Name = *f.Description
	}
	if f.Types != nil {
		if err := q.h.checkTypes(*f.Types, d.Filter.Include); err != nil {
			return err
		}
		d.Filter.Include = *f.Types
	}
	if f.Enabled != nil {
		d.Disabled = !*f.Enabled
	}
	return nil
}

// checkURL checks the rules that the embedder has set. The directory checks all other rules.
func (c *Config) checkURL(address string) error {
	u, err := webhook.ParseURL(address)
	if err != nil {
		return invalid("url", "is not a URL, such as https://example.com/webhooks")
	}
	if !slices.Contains(c.Schemes, u.Scheme) {
		return invalid("url", "has to begin with %s://", strings.Join(c.Schemes, ":// or "))
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"https": "443", "http": "80"}[u.Scheme]
	}
	if c.Ports != nil && !slices.ContainsFunc(c.Ports, func(p int) bool { return strconv.Itoa(p) == port }) {
		return invalid("url", "has the port %s, which is not allowed", port)
	}
	return nil
}

// checkTypes refuses a pattern that selects no type of the catalogue, unless it was there before.
func (h *handler) checkTypes(types, before []string) error {
	for _, t := range types {
		known := h.config.Catalogue == nil || slices.Contains(before, t) || slices.ContainsFunc(h.types, func(e eventType) bool {
			return (&webhook.Filter{Include: []string{t}}).Match(&event.Event{Type: e.Type})
		})
		if !known {
			return invalid("types", "%q is no type of event", t)
		}
	}
	return nil
}

func changeEndpoint(q *request) (any, error) {
	d, err := q.named()
	var f form
	if err == nil {
		err = q.read(&f)
	}
	if err != nil {
		return nil, err
	}
	if d.Version, err = strconv.ParseUint(f.Version, 10, 64); err != nil {
		return nil, invalid("version", "has to be the version of the endpoint")
	}
	if err = q.fill(&d, &f); err != nil {
		return nil, err
	}
	if d, err = q.h.config.Tenants.Update(q.r.Context(), d, q.actor); err != nil {
		return nil, err
	}
	q.h.config.Forwarder.Recheck(q.tenant, d.ID)
	q.changed(ActionChange, d.ID, 0)
	if f.Enabled != nil && *f.Enabled {
		if err = q.revive(&d); err != nil {
			return nil, fmt.Errorf("%w: %w", errNotEnabled, err)
		}
	}
	e, err := q.whole(&d)
	q.afterwards(err)
	return e, nil
}

var errNotEnabled = &failure{http.StatusInternalServerError, "internal", "It was changed, but could not be enabled. Load it again, and try again.", nil}

// revive enables an endpoint that the forwarder has disabled itself.
func (q *request) revive(d *tenants.Destination) error {
	stats, _ := q.stats(d.ID) // an error is about counts, which are not needed
	if s := stats[d.ID]; disabledByForwarder(&s) {
		return q.h.config.Forwarder.Resume(q.r.Context(), d.ID)
	}
	return nil
}

func deleteEndpoint(q *request) (any, error) {
	d, err := q.named()
	if err != nil {
		return nil, err
	}
	version, err := strconv.ParseUint(q.r.URL.Query().Get("version"), 10, 64)
	if err != nil || version == 0 {
		return nil, invalid("version", "has to be the version of the endpoint")
	}
	if err := q.h.config.Tenants.Delete(q.r.Context(), d.ID, version, q.actor); err != nil {
		return nil, err
	}
	defer q.h.config.Forwarder.Recheck(q.tenant, d.ID) // after which deliveries that are left become dead letters
	q.changed(ActionDelete, d.ID, 0)
	p, err := q.h.config.Forwarder.DiscardWaiting(q.r.Context(), d.ID)
	q.afterwards(err)
	return map[string]any{"discarded": p.Changed}, nil
}

func rotateSecret(q *request) (any, error) {
	d, err := q.named()
	if err == nil {
		err = q.read(&struct{}{})
	}
	if err != nil {
		return nil, err
	}
	d, secret, err := q.h.config.Tenants.Rotate(q.r.Context(), d.ID, q.h.config.Overlap, q.actor)
	if errors.Is(err, tenants.ErrTooMany) {
		return nil, &failure{http.StatusConflict, "too_many", "As many secrets sign as can. Try again when an old one has ended.", nil}
	}
	if err != nil {
		return nil, err
	}
	q.h.config.Forwarder.Recheck(q.tenant, d.ID)
	q.changed(ActionRotate, d.ID, 0)
	e, err := q.whole(&d)
	q.afterwards(err)
	return map[string]any{"endpoint": e, "secret": secret.Reveal()}, nil
}

func testEndpoint(q *request) (any, error) {
	var f struct {
		Type string `json:"type"`
	}
	err := q.read(&f)
	var e event.Event
	if err == nil {
		e, err = q.h.sample(f.Type)
	}
	if err == nil {
		err = q.within(q.h.tests)
	}
	var d tenants.Destination
	if err == nil {
		d, err = q.named()
	}
	if err != nil {
		return nil, err
	}
	return q.try(q.r.Context(), d.ID, e)
}

// sample returns a test event of a type. Its id says that it is a test.
func (h *handler) sample(kind string) (event.Event, error) {
	i := slices.IndexFunc(h.types, func(t eventType) bool { return t.Type == kind })
	data := json.RawMessage("{}")
	switch {
	case i >= 0:
		data = h.types[i].Example
	case h.config.Catalogue != nil:
		return event.Event{}, invalid("type", "%q is no type of event", kind)
	}
	body, err := (&event.Custom{Type: kind, Data: data}).AppendJSON(nil)
	if wrong, ok := errors.AsType[*event.CallError](err); ok {
		return event.Event{}, invalid("type", "%s", wrong.Message())
	}
	if err != nil {
		return event.Event{}, err
	}
	e, err := event.Raw(kind, body)
	e.ID = "test_" + e.ID
	return e, err
}

// A tested is a request of a test, and its answer.
type tested struct {
	attempt
	Outcome      webhook.Outcome     `json:"outcome"`
	Filtered     bool                `json:"filtered,omitempty"` // the endpoint does not take events of this type
	Headers      map[string][]string `json:"headers"`
	Body         json.RawMessage     `json:"body"`
	AnswerHeader map[string][]string `json:"answerHeaders,omitempty"`
}

func (q *request) try(ctx context.Context, id string, e event.Event) (any, error) {
	destination, err := q.h.config.Tenants.Destination(ctx, id)
	if err != nil {
		return nil, err
	}
	q.leave()
	results, err := q.h.config.Forwarder.Try(ctx, &destination, e)
	if err != nil {
		return nil, err
	}
	q.changed(ActionTest, id, 0)
	all := []tested{}
	for _, r := range results {
		all = append(all, tested{attemptOf(&r.Attempt), r.Outcome, r.Filtered, r.Header, r.Body, r.AnswerHeader})
	}
	return map[string]any{"items": all}, nil
}
