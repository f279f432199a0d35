package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
)

var waitingParameters = []string{api.ParamID, api.ParamUser, api.ParamEvent}

func listWaiting(c *command) action {
	t := &table{columns: []column{
		{title: "ID"}, {title: "DUE", right: true}, {title: "TYPE", spare: 2}, {title: "EVENT", spare: 3},
		{title: "USER", spare: 4}, {title: "TRIES", right: true}, {title: "LAST ANSWER", spare: 1, flexible: true},
	}}
	return list(c, api.WaitingPath, 100, t, func(d api.Delivery, now time.Time) []any {
		due := "now"
		if wait := d.Due.Sub(now); wait > 0 {
			due = "in " + spell(wait)
		}
		return []any{cell{d.ID, bold}, due, d.Type, d.Event, d.User, d.Tries, lastAnswer(d, bad)}
	}, waitingParameters...)
}

// lastAnswer returns the answer to the latest attempt of a delivery.
func lastAnswer(d api.Delivery, how style) cell {
	n := len(d.Attempts)
	if n == 0 && !d.Ended.IsZero() && d.Reason != "" {
		return cell{"no attempt was made", how}
	} else if n == 0 {
		return cell{"-", faint}
	}
	return cell{answerText(&d.Attempts[n-1]), how}
}

// changeWaiting returns an action that changes the waiting deliveries of a destination that flags
// select, after the question, unless that is "". If none is selected, the action fails with none.
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

var deliveredParameters = []string{api.ParamDestination, api.ParamID, api.ParamUser, api.ParamFrom, api.ParamTo}

func listDelivered(c *command) action {
	t := &table{columns: []column{
		{title: "DELIVERED", right: true}, {title: "DESTINATION"}, {title: "TYPE", spare: 2}, {title: "EVENT", spare: 3}, {title: "USER", spare: 1}, {title: "ID"},
		{title: "LAST ANSWER", spare: 4, flexible: true},
	}}
	return list(c, api.DeliveredPath, 100, t, func(d api.Delivery, now time.Time) []any {
		return []any{ago(d.Ended, now), cell{d.Destination, bold}, d.Type, d.Event, d.User, d.ID, lastAnswer(d, normal)}
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

var deadParameters = []string{api.ParamDestination, api.ParamID, api.ParamType, api.ParamReason, api.ParamUser, api.ParamFrom, api.ParamTo}

func listDead(c *command) action {
	t := &table{columns: []column{
		{title: "KEY"}, {title: "DIED", right: true}, {title: "DESTINATION"}, {title: "TYPE", spare: 2}, {title: "REASON"},
		{title: "TRIES", right: true, spare: 3}, {title: "ID", spare: 4}, {title: "LAST ANSWER", spare: 1, flexible: true},
	}}
	return list(c, api.DeadPath, 100, t, func(d api.Delivery, now time.Time) []any {
		return []any{d.Key, ago(d.Ended, now), cell{d.Destination, bold}, d.Type, cell{d.Reason, bad}, d.Tries, d.ID, lastAnswer(d, normal)}
	}, append(deadParameters, api.ParamOrder)...)
}

func writeDead(s screen, d api.Delivery) {
	s.fields(12, "key", d.Key, "destination", d.Destination, "id", d.ID, "source", d.Source, "type", d.Type,
		"event", d.Event, "user", d.User, "accepted", clock(d.Accepted), "died", clock(d.Ended),
		"reason", d.Reason, "tries", fmt.Sprint(d.Tries), "traceparent", d.TraceParent)
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

// selection defines flags that select deliveries, --all and --yes. The returned function returns
// them as query parameters, or an error unless the user gave exactly one of arguments, flags that
// select, and --all. The argument want says what else than --all there is.
func (c *command) selection(want string, parameters ...string) func() (url.Values, error) {
	read := c.parameters(parameters...)
	all := c.Bool("all", false, "all of them")
	c.yesFlag()
	return func() (url.Values, error) {
		filter, given := read(), 0
		for _, is := range []bool{len(c.args) > 0, len(filter) > 0, *all} {
			if is {
				given++
			}
		}
		if given != 1 {
			return nil, usagef("want %s, or --all; one of them", want)
		}
		return filter, nil
	}
}

// selectDead returns the action that replays or discards the dead letters with the keys in the
// arguments. Without arguments, flags select them, and the action counts them and asks first.
func selectDead(c *command, verb, done, path string) action {
	read := c.selection("keys, flags that select", deadParameters...)
	return c.admin(func(ctx context.Context) error {
		filter, err := read()
		if err != nil {
			return err
		}
		selection := map[string]any{"keys": c.args}
		if len(c.args) == 0 {
			selection = map[string]any{"filter": object(filter)}
			n, err := api.Do[api.Count](ctx, c.client, api.Request{Path: api.DeadCountPath, Query: filter, Timeout: api.StoreTimeout})
			if err != nil {
				return err
			}
			if n.Count == 0 {
				return nothing(errors.New("no dead letter is selected"))
			}
			if err := c.confirm(ctx, "%s %s?", verb, counted(n.Count, "dead letter")); err != nil {
				return err
			}
		}
		r := api.Request{Method: http.MethodPost, Path: path, Body: selection}
		return c.workOn(ctx, "dead letter", done, "no such dead letter is left", r)
	})
}
