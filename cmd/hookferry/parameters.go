package main

import (
	"net/url"
	"slices"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/webhook"
)

// parameters defines one flag for each name. The names are query parameters of the admin API. A
// flag has the name of its parameter, except --query for api.ParamQuery. The returned function
// converts the values of the flags to query parameters.
func (c *command) parameters(names ...string) func() url.Values {
	flagOf := func(name string) string {
		if name == api.ParamQuery {
			return "query"
		}
		return name
	}
	for _, name := range names {
		p := parameterFlags[name]
		switch {
		case p.repeated:
			c.choices(name, p.usage, p.values)
		case p.values != nil:
			c.choice(name, p.standard, p.usage, p.values)
		default:
			c.StringP(flagOf(name), p.short, "", p.usage)
		}
		if p.time {
			c.check(name, func(s string) (string, error) {
				t, err := parseTime(s, time.Now())
				return t.UTC().Format(time.RFC3339Nano), err
			})
		}
	}
	return func() url.Values {
		all := url.Values{}
		for _, name := range names {
			texts := c.texts(flagOf(name))
			if name == api.ParamBy && texts[0] == "" {
				texts[0] = c.getenv("USER")
			}
			if len(texts) > 0 && texts[0] != "" {
				all[name] = texts
			}
		}
		return all
	}
}

var parameterFlags = map[string]struct {
	usage    string
	values   []string // the allowed values; nil allows all
	standard string   // the default
	repeated bool
	time     bool
	short    string // the flag of one letter
}{
	api.ParamDestination: {usage: "only those of the destination with this `id`"},
	api.ParamSource:      {usage: "only those of the source with this `name`"},
	api.ParamID:          {usage: "only those with this `messageId`"},
	api.ParamUser:        {usage: "only those of the user with this `id`"},
	api.ParamEvent:       {usage: "only those of the event with this `name`"},
	api.ParamQuery:       {usage: "only those that contain this `text`", short: "q"},
	api.ParamType:        {usage: "only those of this `type`", values: append(slices.Clip(callTypes), "delete")},
	api.ParamReason:      {usage: "only those given up for this `reason`", values: reasons},
	api.ParamKind:        {usage: "only this `kind`", values: []string{"accepted", "attempt", "delivered", "dead"}, repeated: true},
	api.ParamState:       {usage: "only those in this `state`", values: api.States, repeated: true},
	api.ParamFrom:        {usage: "only those from this `time` on: 2026-01-31T12:00:00Z, 2026-01-31, or '2h ago'", time: true},
	api.ParamTo:          {usage: "only those before this `time`", time: true},
	api.ParamOrder:       {usage: "which are `first`", values: []string{api.OrderNewest, api.OrderOldest}, standard: api.OrderNewest},
	api.ParamSort:        {usage: "`order` of the destinations", values: api.Sorts, standard: api.Sorts[0]},
	api.ParamBy:          {usage: "your `name` for the server's log (default $USER)"},
	api.ParamWaiting:     {usage: "what becomes of the waiting `deliveries`", values: api.WaitingChoices},
}

var reasons = []string{
	string(webhook.ReasonTimeout), string(webhook.ReasonDNS), string(webhook.ReasonConnection), string(webhook.ReasonProtocol),
	string(webhook.ReasonCertificate), string(webhook.ReasonAddress), string(webhook.ReasonAuthorize), string(webhook.ReasonRedirect),
	string(webhook.ReasonThrottled), string(webhook.ReasonRefused), string(webhook.ReasonServerError), string(webhook.ReasonExpired),
	string(webhook.ReasonDisabled),
}

// object converts query parameters to a JSON object. Each parameter has one value.
func object(parameters url.Values) map[string]string {
	o := map[string]string{}
	for name := range parameters {
		o[name] = parameters.Get(name)
	}
	return o
}
