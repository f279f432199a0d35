package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/tenants"
	"github.com/hookferry/analytics/webhook"
)

var deliveryParameters = []string{
	api.ParamDestination, deliveryState, api.ParamType, api.ParamEvent, api.ParamID, api.ParamUser, api.ParamReason, api.ParamFrom, api.ParamTo,
}

func listDeliveries(c *command) action {
	t := &table{columns: []column{
		{title: "KEY"}, {title: "ACCEPTED", right: true}, {title: "STATE"}, {title: "TYPE", spare: 2}, {title: "EVENT", spare: 3},
		{title: "USER", spare: 4}, {title: "TRIES", right: true, spare: 5}, {title: "ID", spare: 6}, {title: "LAST ANSWER", spare: 1, flexible: true},
	}}
	path := c.tenantPaths()
	return list(c, func() (string, error) { return path(api.DeliveriesPath, api.TenantDeliveriesPath) }, 100, t, func(d api.Delivery, now time.Time) []any {
		return []any{cell{d.Key, bold}, ago(d.Accepted, now), stateOf(d, now), d.Type, d.Event, d.User, d.Tries, d.ID, lastAnswer(d)}
	}, append(deliveryParameters, api.ParamOrder, api.ParamAfter)...)
}

// tenantPaths defines --tenant. The returned function chooses between the path for all deliveries
// and the path for the deliveries of one tenant. The tenant is that of --tenant or, with the token
// of a tenant, the one whose destination is in --destination or in the first argument.
func (c *command) tenantPaths() func(all, ofTenant string) (string, error) {
	given := c.set.String("tenant", "", "only those of the tenant with this `id`; its token needs it, or a destination or key of it")
	return func(all, ofTenant string) (string, error) {
		tenant := *given
		if tenant == "" && tenants.IsToken(c.client.Token()) {
			named := ""
			if f := c.set.Lookup("destination"); f != nil {
				named = f.Value.String()
			}
			if len(c.args) > 0 {
				named = c.args[0]
			}
			before, _, ok := strings.Cut(named, "/")
			if !ok {
				return "", usagef("--tenant: want the tenant of the token")
			}
			tenant = before
		}
		if tenant == "" {
			return all, nil
		}
		return strings.Replace(ofTenant, "{tenant}", url.PathEscape(tenant), 1), nil
	}
}

// showDelivery prints the delivery whose key is the argument.
func showDelivery(c *command) action {
	path := c.tenantPaths()
	return c.admin(func(ctx context.Context) error {
		p, err := path(api.DeliveryPath, api.TenantDeliveryPath)
		if err != nil {
			return err
		}
		return request(ctx, c, api.Request{Path: api.Path(p, c.args[0])}, writeDelivery)
	})
}

// stateOf returns the state of a delivery, and why it is dead, or when it is attempted next.
func stateOf(d api.Delivery, now time.Time) cell {
	wait := d.Due.Sub(now)
	switch {
	case d.State == webhook.StateDead:
		return cell{"dead: " + d.Reason, bad}
	case d.State == webhook.StateDelivered:
		return cell{string(d.State), good}
	case d.State == webhook.StateWaiting && wait > 0:
		return cell{"waiting, in " + spell(wait), normal}
	}
	return cell{string(d.State), normal}
}

// lastAnswer returns the answer to the latest attempt of a delivery.
func lastAnswer(d api.Delivery) cell {
	n := len(d.Attempts)
	if n == 0 && d.State == webhook.StateDead {
		return cell{"no attempt was made", normal}
	} else if n == 0 {
		return cell{"-", faint}
	}
	return cell{answerText(&d.Attempts[n-1]), normal}
}

func writeDelivery(s screen, d api.Delivery) {
	at := func(t time.Time) string {
		if t.IsZero() {
			return ""
		}
		return clock(t)
	}
	s.fields(12, "key", d.Key, "state", string(d.State), "reason", d.Reason, "destination", d.Destination, "id", d.ID, "webhook-id", d.WebhookID, "source", d.Source,
		"type", d.Type, "event", d.Event, "user", d.User, "accepted", at(d.Accepted), "due", at(d.Due), "expires", at(d.Expires),
		"ended", at(d.Ended), "tries", fmt.Sprint(d.Tries), "traceparent", d.TraceParent)
	if len(d.Attempts) > 0 {
		fmt.Fprintln(s)
		t := &table{columns: []column{{title: "TRY", right: true}, {title: "AT"}, {title: "TOOK", right: true, spare: 1},
			{title: "ENDPOINT", spare: 2}, {title: "ANSWER", flexible: true}}}
		for _, a := range d.Attempts {
			t.add(a.Try, clock(a.At), millis(a.Took), a.Endpoint, answerText(&a))
		}
		t.print(s)
	}
	if len(d.Body) > 0 {
		fmt.Fprintln(s)
		io.WriteString(s, pretty(d.Body))
	}
}

// changeDeliveries returns the action that retries or discards the deliveries with the keys in the
// arguments. Without arguments, flags select them, and the action counts them and asks first.
func changeDeliveries(c *command, verb, done, ofAll, ofTenant string) action {
	path := c.tenantPaths()
	read := c.parameters(deliveryParameters...)
	all := c.set.Bool("all", false, "all dead letters")
	c.yesFlag()
	return c.admin(func(ctx context.Context) error {
		query, given := read(), 0
		for _, is := range []bool{len(c.args) > 0, len(query) > 0, *all} {
			if is {
				given++
			}
		}
		if given != 1 {
			return usagef("want keys, flags that select, or --all; one of them")
		}
		p, err := path(ofAll, ofTenant)
		if err != nil {
			return err
		}
		thing, selection := "delivery", map[string]any{"keys": c.args}
		if len(c.args) == 0 {
			if !query.Has(api.ParamState) {
				query.Set(api.ParamState, string(webhook.StateDead))
				thing = "dead letter"
			}
			selection = map[string]any{"query": object(query)}
			if err := c.confirmCount(ctx, verb, thing, path, query); err != nil {
				return err
			}
		}
		end, err := c.work(ctx, done, api.Request{Method: http.MethodPost, Path: p, Body: selection})
		switch {
		case err != nil:
			return err
		case end.Done+end.Claimed == 0:
			return nothing(errors.New("no " + thing + " was " + done))
		case !c.json:
			writeChanged(c.process.screen(c.process.stdout), api.Changed{Changed: end.Done, Claimed: end.Claimed}, thing, done)
		}
		return nil
	})
}

// confirmCount counts what the query selects, and asks whether to go on.
func (c *command) confirmCount(ctx context.Context, verb, thing string, path func(all, ofTenant string) (string, error), query url.Values) error {
	p, err := path(api.CountPath, api.TenantCountPath)
	if err != nil {
		return err
	}
	n, err := api.Do[api.Count](ctx, c.client, api.Request{Path: p, Query: query, Timeout: api.StoreTimeout})
	switch {
	case err != nil:
		return err
	case n.Stopped:
		return c.confirm(ctx, "%s %s or more?", verb, counted(n.Count, thing))
	case n.Count == 0:
		return nothing(errors.New("no " + thing + " is selected"))
	}
	return c.confirm(ctx, "%s %s?", verb, counted(n.Count, thing))
}

// object converts the query parameters that select deliveries to a JSON object.
func object(parameters url.Values) map[string]any {
	o := map[string]any{}
	for name, values := range parameters {
		if o[name] = values[0]; name == api.ParamDestination || name == api.ParamState {
			o[name] = values
		}
	}
	return o
}

func writeChanged(s screen, n api.Changed, thing, done string) {
	if n.Changed > 0 {
		fmt.Fprintf(s, "%s %s\n", counted(n.Changed, thing), done)
	}
	if n.Claimed > 0 {
		fmt.Fprintf(s, "%s left: being attempted\n", counted(n.Claimed, "delivery"))
	}
}
