package main

import (
	"net/url"
	"slices"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/webhook"
)

// parameters defines one flag for each name. The names are query parameters of the admin API that
// select values. A flag has the name of its parameter, except --query for api.ParamQuery. The
// returned function converts the values of the flags to query parameters.
func (o *options) parameters(names ...string) func() url.Values {
	read := map[string]func() []string{}
	for _, name := range names {
		p := parameterFlags[name]
		one := func(text *string) { read[name] = func() []string { return []string{*text} } }
		switch {
		case p.repeated:
			list := o.choices(name, p.usage, p.values)
			read[name] = func() []string { return *list }
		case p.values != nil:
			one(o.choice(name, p.standard, p.usage, p.values))
		case p.time:
			one(parsed(o, name, "", p.usage, func(s string) (string, error) {
				t, err := parseTime(s, time.Now())
				return t.UTC().Format(time.RFC3339Nano), err
			}))
		case name == api.ParamQuery:
			one(o.StringP("query", "q", "", p.usage))
		default:
			one(o.String(name, "", p.usage))
		}
	}
	return func() url.Values {
		all := url.Values{}
		for name, texts := range read {
			if list := texts(); len(list) > 0 && list[0] != "" {
				all[name] = list
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
}{
	api.ParamDestination: {usage: "only those of the destination with this `id`"},
	api.ParamSource:      {usage: "only those of the source with this `name`"},
	api.ParamID:          {usage: "only those with this `messageId`"},
	api.ParamUser:        {usage: "only those of the user with this `id`"},
	api.ParamEvent:       {usage: "only those of the event with this `name`"},
	api.ParamQuery:       {usage: "only those that contain this `text`"},
	api.ParamType:        {usage: "only those of this `type`", values: append(slices.Clip(callTypes), "delete")},
	api.ParamReason:      {usage: "only those given up for this `reason`", values: reasons},
	api.ParamKind:        {usage: "only this `kind`", values: []string{"accepted", "attempt", "delivered", "dead"}, repeated: true},
	api.ParamState:       {usage: "only those in this `state`", values: api.States, repeated: true},
	api.ParamFrom:        {usage: "only those from this `time` on: 2026-01-31T12:00:00Z, 2026-01-31, or '2h ago'", time: true},
	api.ParamTo:          {usage: "only those before this `time`", time: true},
	api.ParamOrder:       {usage: "which are `first`", values: []string{api.OrderNewest, api.OrderOldest}, standard: api.OrderNewest},
	api.ParamSort:        {usage: "`order` of the destinations", values: api.Sorts, standard: api.Sorts[0]},
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
