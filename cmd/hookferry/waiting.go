package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
)

var waitingParameters = []string{api.ParamID, api.ParamUser, api.ParamEvent}

func listWaiting(o *options) action {
	t := &table{columns: []column{
		{title: "ID"}, {title: "DUE", right: true}, {title: "TYPE", spare: 2}, {title: "EVENT", spare: 3},
		{title: "USER", spare: 4}, {title: "TRIES", right: true}, {title: "LAST ANSWER", spare: 1, flexible: true},
	}}
	return list(o, api.WaitingPath, 100, t, func(d api.WaitingDelivery, now time.Time) []any {
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

func retryWaiting(o *options) action {
	read := o.parameters(waitingParameters...)
	return o.admin(func(ctx context.Context, c *call) error {
		return c.changeWaiting(ctx, api.WaitingRetryPath, read(), "due now", "nothing that is selected waits for a later time")
	})
}

func discardWaiting(o *options) action {
	read := o.parameters(waitingParameters...)
	o.yesFlag()
	return o.admin(func(ctx context.Context, c *call) error {
		filter, which := read(), "all"
		if len(filter) > 0 {
			which = "the selected"
		}
		if err := c.confirm(ctx, "discard %s waiting deliveries of %s?", which, c.args[0]); err != nil {
			return err
		}
		return c.changeWaiting(ctx, api.WaitingDiscardPath, filter, "discarded", "nothing that is selected waits")
	})
}

// changeWaiting changes the waiting deliveries of the destination that the filter selects. If the
// filter selects none, changeWaiting returns an error whose text is the argument none.
func (c *call) changeWaiting(ctx context.Context, path string, filter url.Values, done, none string) error {
	filter.Set(api.ParamDestination, c.args[0])
	n, err := api.Do[api.Changed](ctx, c.client, api.Request{Method: http.MethodPost, Path: path, Body: object(filter), Timeout: api.StoreTimeout})
	switch {
	case err != nil:
		return err
	case c.json:
		return printJSON(c.stdout, n)
	case n == api.Changed{}:
		return nothing(errors.New(none))
	}
	c.printChanged(n, done)
	return nil
}

func (c *call) printChanged(n api.Changed, done string) {
	if n.Changed > 0 {
		fmt.Fprintf(c.stdout, "%s %s\n", counted(n.Changed, "delivery"), done)
	}
	if n.Claimed > 0 {
		fmt.Fprintf(c.stdout, "%s left: being attempted\n", counted(n.Claimed, "delivery"))
	}
}
