package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
)

const waitingHelp = `Waiting works on the deliveries that wait for a destination: those that were
not attempted yet, and those that are attempted again. The destination may be
one that the server does not know any more. What is being attempted at the
moment is listed, but neither hurried nor discarded.

Examples:
  hookferry waiting ls acme
  hookferry waiting retry acme
  hookferry waiting discard acme --user u1
`

const (
	waitingListHelp = `List what waits for a destination, the first that is due first.

Examples:
  hookferry waiting ls acme --event "Order Paid"
  hookferry waiting ls acme --json | jq -r .id
`
	waitingRetryHelp = `Attempt now what waits for a later time. A destination that is paused stays so.

Examples:
  hookferry waiting retry acme
  hookferry waiting retry acme --id invoice-1042-paid
`
	waitingDiscardHelp = `Remove what waits for good. It is neither delivered nor a dead letter.

Examples:
  hookferry waiting discard acme --event "Cart Viewed"
  hookferry waiting discard gone --yes
`
)

// waitingFilter defines the flags that select what waits, and returns what makes a filter of them
// and the arguments.
func waitingFilter(o *options) func(args []string) (api.WaitingFilter, error) {
	id := o.text("id", "", "only the one with this `messageId`")
	user := o.text("user", "", "only those of the user with this `id`")
	event := o.text("event", "", "only those of the event with this `name`")
	return func(args []string) (api.WaitingFilter, error) {
		if len(args) != 1 || args[0] == "" {
			return api.WaitingFilter{}, usagef("want one destination")
		}
		return api.WaitingFilter{Destination: args[0], ID: *id, User: *user, Event: *event}, nil
	}
}

func listWaiting(o *options) action {
	read := waitingFilter(o)
	limit := o.number("limit", 100, 1, 1_000_000, "how `many` at most")
	f := newAdminFlags(o)
	return f.action(func(ctx context.Context, c *api.Client, args []string, p process) error {
		filter, err := read(args)
		if err != nil {
			return err
		}
		now := time.Now()
		return printList(c.Waiting(ctx, filter), *limit, *f.json, p, func(list []api.WaitingDelivery) *table { return waitingTable(list, now) })
	})
}

func waitingTable(list []api.WaitingDelivery, now time.Time) *table {
	t := &table{columns: []column{
		{title: "ID"}, {title: "DUE", right: true}, {title: "TYPE", spare: 2}, {title: "EVENT", spare: 3},
		{title: "USER", spare: 4}, {title: "TRIES", right: true}, {title: "LAST ANSWER", spare: 1, flexible: true},
	}}
	for _, d := range list {
		due := "now"
		if wait := d.Due.Sub(now); wait > 0 {
			due = "in " + spell(wait)
		}
		last := cell{"-", faint}
		if d.Last != nil {
			last = cell{verdict(*d.Last), bad}
		}
		t.add(cell{clean(d.ID), bold}, cell{due, normal}, cell{clean(d.Type), normal}, cell{clean(d.Event), normal},
			cell{clean(d.User), normal}, cell{strconv.Itoa(d.Tries), normal}, last)
	}
	return t
}

func retryWaiting(o *options) action {
	read := waitingFilter(o)
	f := newAdminFlags(o)
	return f.action(func(ctx context.Context, c *api.Client, args []string, p process) error {
		filter, err := read(args)
		if err != nil {
			return err
		}
		n, err := c.RetryWaiting(ctx, filter)
		if err != nil {
			return err
		}
		return printChanged(p, *f.json, n, "due now", "nothing that is selected waits for a later time")
	})
}

func discardWaiting(o *options) action {
	read := waitingFilter(o)
	yes := o.boolean("yes", "do not ask")
	f := newAdminFlags(o)
	return f.action(func(ctx context.Context, c *api.Client, args []string, p process) error {
		filter, err := read(args)
		if err != nil {
			return err
		}
		if !*yes {
			what := "all that waits for " + clean(filter.Destination)
			if (filter != api.WaitingFilter{Destination: filter.Destination}) {
				what = "what is selected of " + what
			}
			if err := confirm(ctx, p, fmt.Sprintf("discard %s?", what)); err != nil {
				return err
			}
		}
		n, err := c.DiscardWaiting(ctx, filter)
		if err != nil {
			return err
		}
		return printChanged(p, *f.json, n, "discarded", "nothing that is selected waits")
	})
}

// printChanged says what became of what waited. It fails with nothing if there was nothing.
func printChanged(p process, json bool, n api.Changed, done, nothing string) error {
	if json {
		return printJSON(p.stdout, n)
	}
	if n.Changed > 0 {
		fmt.Fprintf(p.stdout, "%s %s\n", counted(n.Changed, "delivery"), done)
	}
	switch {
	case n.Claimed > 0:
		fmt.Fprintf(p.stdout, "%s left: being attempted\n", counted(n.Claimed, "delivery"))
	case n.Changed == 0:
		return &nothingError{fmt.Errorf("%s", nothing)}
	}
	return nil
}
