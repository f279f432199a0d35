package main

import (
	"context"
	"fmt"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
)

const deliveredHelp = `Delivered works on what was delivered and is kept, if the configuration has
history.maxAge.

Examples:
  hookferry delivered ls --destination acme --from '2h ago'
  hookferry delivered resend --destination acme --id invoice-1042-paid
`

const (
	deliveredListHelp = `List what was delivered and is kept, the latest first.

Examples:
  hookferry delivered ls --user u1
  hookferry delivered ls --destination acme --from '2h ago' --json | jq -r .id
`
	deliveredResendHelp = `Send again what was delivered, as new deliveries of the same bodies. Each has a
webhook-id of its own, so that receivers which deduplicate by it take it.

Examples:
  hookferry delivered resend --destination acme --id invoice-1042-paid
  hookferry delivered resend --destination acme --from '2h ago' --yes
`
)

// deliveredFilter defines the flags that select what was delivered, and returns what makes a filter
// of them.
func deliveredFilter(o *options) func(now time.Time) (api.DeliveredFilter, error) {
	destination := o.text("destination", "", "only those to the destination with this `id`")
	id := o.text("id", "", "only those with this `messageId`")
	user := o.text("user", "", "only those of the user with this `id`")
	from := o.text("from", "", "only those delivered at this `time` or later: 2026-01-31T12:00:00Z, 2026-01-31, or '2h ago'")
	to := o.text("to", "", "only those delivered before this `time`")
	return func(now time.Time) (f api.DeliveredFilter, err error) {
		f = api.DeliveredFilter{Destination: *destination, ID: *id, User: *user}
		f.From, f.To, err = parseBounds(*from, *to, now)
		return f, err
	}
}

func listDelivered(o *options) action {
	read := deliveredFilter(o)
	limit := o.number("limit", 100, 1, 1_000_000, "how `many` at most")
	f := newAdminFlags(o)
	return f.action(func(ctx context.Context, c *api.Client, _ []string, p process) error {
		now := time.Now()
		filter, err := read(now)
		if err != nil {
			return err
		}
		return printList(c.Delivered(ctx, filter), *limit, *f.json, p, func(list []api.DeliveredDelivery) *table {
			t := &table{columns: []column{
				{title: "DELIVERED", right: true}, {title: "DESTINATION"}, {title: "TYPE", spare: 2}, {title: "EVENT", spare: 3}, {title: "USER", spare: 1}, {title: "ID"},
			}}
			for _, d := range list {
				t.add(cell{spell(now.Sub(d.Delivered)) + " ago", normal}, cell{clean(d.Destination), bold}, cell{clean(d.Type), normal},
					cell{clean(d.Event), normal}, cell{clean(d.User), normal}, cell{clean(d.ID), normal})
			}
			return t
		})
	})
}

func resendDelivered(o *options) action {
	read := deliveredFilter(o)
	all := o.boolean("all", "all of them")
	yes := o.boolean("yes", "do not ask")
	f := newAdminFlags(o)
	return f.action(func(ctx context.Context, c *api.Client, _ []string, p process) error {
		filter, err := read(time.Now())
		if err != nil {
			return err
		}
		if selects := filter != (api.DeliveredFilter{}); selects == *all {
			return usagef("want flags that select, or --all")
		}
		if !*yes && filter.ID == "" {
			if err := confirm(ctx, p, "send again all that is selected?"); err != nil {
				return err
			}
		}
		end, err := follow(ctx, newMeter(p.screen(p.stderr), "sent again"), jsonOut(*f.json, p), nil, c.Resend(ctx, filter))
		if err != nil {
			return err
		}
		if end.Done == 0 {
			return &nothingError{fmt.Errorf("nothing that is kept is selected")}
		}
		if !*f.json {
			fmt.Fprintf(p.stdout, "%s sent again\n", counted(end.Done, "delivery"))
		}
		return nil
	})
}
