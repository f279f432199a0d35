package main

import (
	"context"
	"net/http"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
)

var deliveredParameters = []string{api.ParamDestination, api.ParamID, api.ParamUser, api.ParamFrom, api.ParamTo}

func listDelivered(o *options) action {
	t := &table{columns: []column{
		{title: "DELIVERED", right: true}, {title: "DESTINATION"}, {title: "TYPE", spare: 2}, {title: "EVENT", spare: 3}, {title: "USER", spare: 1}, {title: "ID"},
	}}
	return list(o, api.DeliveredPath, 100, t, func(d api.DeliveredDelivery, now time.Time) []any {
		return []any{spell(now.Sub(d.Delivered)) + " ago", cell{d.Destination, bold}, d.Type, d.Event, d.User, d.ID}
	}, deliveredParameters...)
}

func resendDelivered(o *options) action {
	read := o.parameters(deliveredParameters...)
	all := o.Bool("all", false, "all of them")
	o.yesFlag()
	return o.admin(func(ctx context.Context, c *call) error {
		filter := read()
		if selects := len(filter) > 0; selects == *all {
			return usagef("want flags that select, or --all")
		}
		if !filter.Has(api.ParamID) {
			if err := c.confirm(ctx, "send all selected deliveries again?"); err != nil {
				return err
			}
		}
		r := api.Request{Method: http.MethodPost, Path: api.ResendPath, Body: object(filter)}
		return c.workOn(ctx, "delivery", "sent again", "none of the kept deliveries is selected", r)
	})
}
