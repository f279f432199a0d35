package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
)

var waitingParameters = []string{api.ParamID, api.ParamUser, api.ParamEvent}

func listWaiting(c *command) action {
	t := &table{columns: []column{
		{title: "ID"}, {title: "DUE", right: true}, {title: "TYPE", spare: 2}, {title: "EVENT", spare: 3},
		{title: "USER", spare: 4}, {title: "TRIES", right: true}, {title: "LAST ANSWER", spare: 1, flexible: true},
	}}
	return list(c, api.WaitingPath, 100, t, func(d api.WaitingDelivery, now time.Time) []any {
		due := "now"
		if wait := d.Due.Sub(now); wait > 0 {
			due = "in " + spell(wait)
		}
		last := cell{"-", faint}
		if d.Last != nil {
			last = cell{answered(d.Last), bad}
		}
		return []any{cell{d.ID, bold}, due, d.Type, d.Event, d.User, d.Tries, last}
	}, waitingParameters...)
}

// changeWaiting returns an action that changes the waiting deliveries of a destination that flags
// select. If question is not empty, the action asks for confirmation first. If no delivery is
// selected, the action returns an error whose text is the argument none.
func changeWaiting(c *command, path, question, done, none string) action {
	read := c.parameters(waitingParameters...)
	if question != "" {
		c.yesFlag()
	}
	return c.admin(func(ctx context.Context) error {
		filter, which := read(), "all"
		if len(filter) > 0 {
			which = "the selected"
		}
		if question != "" {
			if err := c.confirm(ctx, question, which, c.args[0]); err != nil {
				return err
			}
		}
		filter.Set(api.ParamDestination, c.args[0])
		r := api.Request{Method: http.MethodPost, Path: path, Body: object(filter), Timeout: api.StoreTimeout}
		n, err := api.Do[api.Changed](ctx, c.client, r)
		if err != nil {
			return err
		}
		if n == (api.Changed{}) && !c.json {
			return nothing(errors.New(none))
		}
		return c.output(n, func(s screen) { writeChanged(s, n, done) })
	})
}

func writeChanged(s screen, n api.Changed, done string) {
	if n.Changed > 0 {
		fmt.Fprintf(s, "%s %s\n", counted(n.Changed, "delivery"), done)
	}
	if n.Claimed > 0 {
		fmt.Fprintf(s, "%s left: being attempted\n", counted(n.Claimed, "delivery"))
	}
}
