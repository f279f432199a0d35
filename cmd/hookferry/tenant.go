package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
	"github.com/hookferry/analytics/tenants"
	"github.com/hookferry/analytics/webhook"
)

func listTenants(c *command) action {
	t := &table{columns: []column{{title: "TENANT"}, {title: "NAME", flexible: true}, {title: "STATE"}}}
	return list(c, at(api.TenantsPath), 1_000_000, t, func(t tenants.Tenant, _ time.Time) []any {
		return []any{t.ID, t.Name, tenantState(t)}
	}, api.ParamAfter)
}

func tenantState(t tenants.Tenant) string {
	switch {
	case t.Deleting:
		return "half deleted"
	case t.Disabled:
		return "disabled"
	}
	return "enabled"
}

func writeTenant(s screen, t tenants.Tenant) {
	const width = 16
	s.fields(width, "tenant", t.ID, "name", t.Name, "state", tenantState(t))
	writeChanges(s, width, t.Changes)
}

func writeChanges(s screen, width int, changes []tenants.Change) {
	for _, c := range changes {
		s.fields(width, "change", c.At.UTC().Format(time.RFC3339)+" "+c.What+" by "+cmp.Or(c.By, "the server"))
	}
}

func createTenant(c *command) action {
	name := c.set.String("name", "", "`name` for people")
	return call(c, http.MethodPost, api.TenantsPath, func() (any, error) { return api.TenantSettings{ID: c.args[0], Name: *name}, nil },
		func(s screen, t tenants.Tenant) { s.print("%s created", t.ID) }, api.ParamBy)
}

func switchTenant(c *command, done string, disabled bool) action {
	return call(c, http.MethodPatch, api.TenantPath, the(map[string]any{"disabled": disabled}),
		func(s screen, t tenants.Tenant) { s.print("%s %s", t.ID, done) }, api.ParamBy)
}

func deleteTenant(c *command) action {
	return sure(c, "delete %s with all its destinations and tokens?", call(c, http.MethodDelete, api.TenantPath, nil,
		func(s screen, became api.Changed) { writeDeleted(s, c.args[0], became) }, api.ParamBy, api.ParamWaiting))
}

// writeDeleted says that a thing was deleted, and how many deliveries were discarded with it.
func writeDeleted(s screen, what string, became api.Changed) {
	s.print("%s deleted", what)
	writeChanged(s, became, "delivery", "discarded")
}

// tenantPortal prints a link to the page of a tenant, or revokes all links.
func tenantPortal(c *command) action {
	read := c.parameters(api.ParamBy, api.ParamFor, api.ParamLasts)
	revoke := c.set.Bool("revoke", false, "end all links of the tenant, and make none")
	return c.admin(func(ctx context.Context) error {
		r := api.Request{Method: http.MethodPost, Path: api.Path(api.PortalPath, c.args[0]), Query: read()}
		if *revoke {
			r.Method = http.MethodDelete
			r.Query.Del(api.ParamFor)
			r.Query.Del(api.ParamLasts)
			return request(ctx, c, r, func(s screen, t tenants.Tenant) { s.print("the links of %s have ended", t.ID) })
		}
		return request(ctx, c, r, func(s screen, l api.PortalLink) { s.print("%s", l.URL) })
	})
}

func listTenantDestinations(c *command) action {
	t := &table{columns: []column{{title: "DESTINATION"}, {title: "NAME", spare: 2}, {title: "URL", flexible: true}, {title: "TYPES", spare: 1}, {title: "STATE"}}}
	return list(c, ofTenant(c, api.TenantDestinationsPath), 1_000_000, t, func(d api.TenantDestination, _ time.Time) []any {
		return []any{d.ID, d.Name, d.Endpoints[0].URL, cmp.Or(strings.Join(d.Filter.Include, " "), "*"), destinationState(d)}
	}, api.ParamAfter)
}

// ofTenant is for a list of what the tenant in the first argument has.
func ofTenant(c *command, path string) func() (string, error) {
	return func() (string, error) { return api.Path(path, c.args[0]), nil }
}

func destinationState(d api.TenantDestination) string {
	switch {
	case d.Disabled:
		return "disabled"
	case d.Held != nil:
		return string(d.Held.Kind)
	}
	return "enabled"
}

func writeTenantDestination(s screen, d api.TenantDestination) {
	const width = 16
	s.fields(width, "destination", d.ID, "name", d.Name, "state", destinationState(d))
	for _, e := range d.Endpoints {
		s.fields(width, "endpoint", e.URL, "  headers", strings.Join(e.Headers, ", "))
	}
	writeSettings(s, width, &d.Settings)
	for _, until := range d.OldSecrets {
		s.fields(width, "old secret", "signs beside the newest one until "+until.UTC().Format(time.RFC3339))
	}
	writeChanges(s, width, d.Changes)
}

func createTenantDestination(c *command) action {
	by := c.parameters(api.ParamBy)
	urls := c.set.StringArray("url", nil, "`URL` that takes its webhooks; up to five, of which the first to answer 2xx is enough")
	types := c.set.StringArray("type", nil, "`type` of the events that it gets, such as invoice.paid or invoice.*; all if left out; may be repeated")
	name := c.set.String("name", "", "`name` for people")
	existing := c.set.String("secret", "", "`secret` that the receiver has already, as whsec_... or file:PATH; a new one if left out")
	return c.admin(func(ctx context.Context) error {
		if len(*urls) == 0 {
			return usagef("--url: want at least one")
		}
		secret, err := config.ReadSecret(*existing)
		if err != nil {
			return fmt.Errorf("--secret: %w", err)
		}
		var endpoints []webhook.Endpoint
		for _, u := range *urls {
			endpoints = append(endpoints, webhook.Endpoint{URL: u})
		}
		settings := api.TenantDestinationSettings{
			Name: *name, Secret: secret.Reveal(),
			Settings: webhook.Settings{Endpoints: endpoints, Filter: webhook.Filter{Include: *types}},
		}
		r := api.Request{Method: http.MethodPost, Path: api.Path(api.TenantDestinationsPath, c.args[0]), Query: by(), Body: settings}
		return request(ctx, c, r, writeNewSecret)
	})
}

func writeNewSecret(s screen, made api.NewTenantDestination) {
	s.fields(16, "destination", made.Destination.ID, "secret", made.Secret)
}

// destinationPath fills the id of a tenant's destination into a path.
func destinationPath(path, id string) (string, error) {
	tenant, name, ok := strings.Cut(id, "/")
	if !ok {
		return "", usagef("%q is not the id of a tenant's destination: its tenant, a slash, and a name", id)
	}
	return api.Path(path, tenant, name), nil
}

func changeTenantDestination(c *command) action {
	return call(c, http.MethodPatch, api.TenantDestinationPath, func() (any, error) { return c.readDocument(c.args[1]) },
		func(s screen, d api.TenantDestination) { s.print("%s changed", d.ID) }, api.ParamBy)
}

func switchTenantDestination(c *command, done string, disabled bool) action {
	return call(c, http.MethodPatch, api.TenantDestinationPath, the(map[string]any{"disabled": disabled}),
		func(s screen, d api.TenantDestination) { s.print("%s %s", d.ID, done) }, api.ParamBy)
}

func deleteTenantDestination(c *command) action {
	return sure(c, "delete %s, and what waits for it?", call(c, http.MethodDelete, api.TenantDestinationPath, nil,
		func(s screen, became api.Changed) { writeDeleted(s, c.args[0], became) }, api.ParamBy, api.ParamWaiting))
}

func listTokens(c *command) action {
	t := &table{columns: []column{{title: "TOKEN"}, {title: "CREATED"}, {title: "BY", flexible: true}}}
	return list(c, ofTenant(c, api.TokensPath), 1_000_000, t, func(t tenants.Token, _ time.Time) []any {
		return []any{t.Name, t.Created.UTC().Format(time.RFC3339), t.By}
	}, api.ParamAfter)
}

func createToken(c *command) action {
	return call(c, http.MethodPost, api.TokensPath, func() (any, error) { return api.TokenSettings{Name: c.args[1]}, nil },
		func(s screen, made api.NewToken) { s.print("%s", made.Text) }, api.ParamBy)
}

func revokeToken(c *command) action {
	return call(c, http.MethodDelete, api.TokenPath, nil, func(s screen, t tenants.Token) { s.print("%s revoked", t.Name) }, api.ParamBy)
}

// sendEvent sends one event to a tenant.
func sendEvent(c *command) action {
	c.jsonFlag()
	tenant := c.set.String("tenant", "", "`id` of the tenant")
	typ := c.set.String("type", "", "`type` of the event, such as invoice.paid")
	data := c.set.String("data", "", "`JSON` of what happened")
	id := c.set.String("id", "", "`id` of the event: a second event with it is not delivered; made up if left out")
	at := c.set.String("timestamp", "", "`time` when it happened, such as 2026-01-31T12:00:00Z; now if left out")
	user := c.set.String("user", "", "`id` of the user whom it is about")
	key := c.set.String("key", "", "`key` whose events are delivered in their order")
	endpoint := c.set.String("endpoint", analytics.DefaultEndpoint, "`URL` of the server")
	publishKey := c.set.String("publish-key", "", "`key` of --publish-key or tenants.keys of the server, or a token of the tenant, or file:PATH")
	timeout := c.duration("timeout", 10*time.Second, "`time` to try for")
	for _, name := range []string{"endpoint", "publish-key", "timeout"} {
		c.variable(name, nil)
	}
	return func(ctx context.Context) error {
		for _, f := range []struct{ name, text string }{{"tenant", *tenant}, {"type", *typ}, {"data", *data}, {"publish-key", *publishKey}} {
			if f.text == "" {
				return usagef("--%s: is required", f.name)
			}
		}
		if !json.Valid([]byte(*data)) {
			return usagef(`--data: is not JSON, such as {"id": "inv-7"}`)
		}
		e := api.TenantEvent{Type: *typ, Data: json.RawMessage(*data), ID: *id, User: *user, Key: *key}
		if *at != "" {
			var err error
			if e.Timestamp, err = parseTime(*at, time.Now()); err != nil {
				return usagef("--timestamp: %v", err)
			}
		}
		secret, err := config.ReadSecret(*publishKey)
		if err != nil {
			return fmt.Errorf("--publish-key: %w", err)
		}
		client, err := api.NewClient(*endpoint, secret.Reveal(), c.process.transport())
		if err != nil {
			return usagef("--endpoint: %v", err)
		}
		defer client.Close()
		r := api.Request{Method: http.MethodPost, Path: api.Path(api.PublishPath, *tenant), Body: e, Timeout: *timeout}
		sent, err := api.Do[api.Published](ctx, client, r)
		var refused *api.Error
		switch {
		case errors.As(err, &refused) && refused.Code == api.CodeUnauthorized:
			return fmt.Errorf("not accepted: %s knows no such key or token of %s; see --publish-key", client.Host(), *tenant)
		case err != nil:
			return fmt.Errorf("not accepted: %w", err)
		case len(sent.Events) != 1:
			return errors.New("the server's answer is not about one event")
		}
		return c.print(sent.Events[0], "%s", resultText(sent.Events[0], *tenant))
	}
}

func resultText(e api.PublishedEvent, tenant string) string {
	switch e.Result {
	case api.ResultNobody:
		return "not stored: " + tenant + " has no destination"
	case api.ResultFiltered:
		return "not stored: no destination of " + tenant + " takes this type"
	case api.ResultDuplicate:
		return "not stored again: the server has an event with this id"
	}
	return "stored for " + counted(int64(e.Stored), "destination")
}

// deliveryPath returns the path of a delivery. The token of a tenant may use only the path below
// its tenant.
func deliveryPath(key, token string) string {
	if tenants.IsToken(token) {
		tenant, _, _ := strings.Cut(key, "/")
		return api.Path(api.TenantDeliveryPath, tenant, key)
	}
	return api.Path(api.DeliveryPath, key)
}
