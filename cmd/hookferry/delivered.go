package main

import (
	"context"
	"net/http"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
)

var deliveredParameters = []string{api.ParamDestination, api.ParamID, api.ParamUser, api.ParamFrom, api.ParamTo}

func listDelivered(c *command) action {
	t := &table{columns: []column{
		{title: "DELIVERED", right: true}, {title: "DESTINATION"}, {title: "TYPE", spare: 2}, {title: "EVENT", spare: 3}, {title: "USER", spare: 1}, {title: "ID"},
	}}
	return list(c, api.DeliveredPath, 100, t, func(d api.DeliveredDelivery, now time.Time) []any {
		return []any{spell(now.Sub(d.Delivered)) + " ago", cell{d.Destination, bold}, d.Type, d.Event, d.User, d.ID}
	}, deliveredParameters...)
}

func resendDelivered(c *command) action {
	read := c.selection("flags that select", deliveredParameters...)
	return c.admin(func(ctx context.Context) error {
		filter, err := read()
		if err != nil {
			return err
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
