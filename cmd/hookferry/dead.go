package main

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/webhook"
)

const deadHelp = `Dead letters are deliveries that were given up. What flags select is counted,
and on a terminal you are asked; elsewhere --yes is wanted. To select all, say
--all.

Examples:
  hookferry dead ls --reason refused --from '2h ago'
  hookferry dead show 0019c5
  hookferry dead replay --destination acme --from 2026-01-31T12:00:00Z
  hookferry dead discard --all --yes
`

const (
	deadListHelp = `List dead letters, the newest first, with the last thing that was tried.

Examples:
  hookferry dead ls --reason refused --from '2h ago'
  hookferry dead ls --json | jq -r .key
`
	deadShowHelp = `Print all of a dead letter: its attempts, and the body of the webhook.

Examples:
  hookferry dead show 0019c5
`
	deadReplayHelp = `Deliver dead letters again, as if they had just been accepted.

Examples:
  hookferry dead replay 0019c5 0019c6
  hookferry dead replay --destination acme --from '2h ago'
  hookferry dead replay --all --yes
`
	deadDiscardHelp = `Remove dead letters for good.

Examples:
  hookferry dead discard 0019c5 0019c6
  hookferry dead discard --to '30d ago' --yes
`
)

func replayDead(o *options) action {
	return selectDead(o, "replay", "replayed", (*api.Client).Replay)
}

func discardDead(o *options) action {
	return selectDead(o, "discard", "discarded", (*api.Client).Discard)
}

// reasons are why deliveries are given up.
var reasons = []string{
	string(webhook.ReasonTimeout), string(webhook.ReasonDNS), string(webhook.ReasonConnection), string(webhook.ReasonProtocol),
	string(webhook.ReasonCertificate), string(webhook.ReasonAddress), string(webhook.ReasonAuthorize), string(webhook.ReasonRedirect),
	string(webhook.ReasonThrottled), string(webhook.ReasonRefused), string(webhook.ReasonServerError), string(webhook.ReasonExpired),
	string(webhook.ReasonDisabled),
}

// eventTypes are the types of webhooks.
var eventTypes = append(slices.Clip(callTypes), "delete")

// deadFilter defines the flags that select dead letters, and returns what makes
// a filter of them.
func deadFilter(o *options) func(now time.Time) (api.DeadFilter, error) {
	destination := o.text("destination", "", "only those of the destination with this `id`")
	id := o.text("id", "", "only those with this `messageId`")
	kind := o.choice("type", "", "only those of this `type`", eventTypes...)
	reason := o.choice("reason", "", "only those given up for this `reason`", reasons...)
	user := o.text("user", "", "only those of the user with this `id`")
	from := o.text("from", "", "only those that died at this `time` or later: 2026-01-31T12:00:00Z, 2026-01-31, or '2h ago'")
	to := o.text("to", "", "only those that died before this `time`")
	return func(now time.Time) (api.DeadFilter, error) {
		filter := api.DeadFilter{Destination: *destination, ID: *id, Type: *kind, Reason: *reason, User: *user}
		var err error
		filter.From, filter.To, err = parseBounds(*from, *to, now)
		return filter, err
	}
}

// parseBounds parses the values of --from and --to, which may be empty.
func parseBounds(from, to string, now time.Time) (first, end *time.Time, err error) {
	for _, bound := range []struct {
		flag, text string
		to         **time.Time
	}{{"--from", from, &first}, {"--to", to, &end}} {
		if bound.text == "" {
			continue
		}
		t, err := parseTime(bound.text, now)
		if err != nil {
			return nil, nil, usagef("%s: %q: %v", bound.flag, bound.text, err)
		}
		*bound.to = &t
	}
	return first, end, nil
}

func listDead(o *options) action {
	read := deadFilter(o)
	order := o.choice("order", api.OrderNewest, "which are `first`", api.OrderNewest, api.OrderOldest)
	limit := o.number("limit", 100, 1, 1_000_000, "how `many` at most")
	f := newAdminFlags(o)
	return f.action(func(ctx context.Context, c *api.Client, _ []string, p process) error {
		now := time.Now()
		filter, err := read(now)
		if err != nil {
			return err
		}
		filter.Order = *order
		return printList(c.Dead(ctx, filter), *limit, *f.json, p, func(list []api.DeadLetter) *table { return deadTable(list, now) })
	})
}

// printList prints up to limit values of a list, and says if there are more.
func printList[T any](seq iter.Seq2[T, error], limit int, json bool, p process, tableOf func([]T) *table) error {
	var list []T
	more := false
	for v, err := range seq {
		if err != nil {
			return err
		}
		if len(list) == limit {
			more = true
			break
		}
		list = append(list, v)
	}
	if json {
		for _, v := range list {
			if err := printJSON(p.stdout, v); err != nil {
				return err
			}
		}
	} else {
		tableOf(list).print(p.screen(p.stdout))
	}
	if more {
		fmt.Fprintf(p.stderr, "There are more; --limit %d ends the list here.\n", limit)
	}
	return nil
}

func deadTable(list []api.DeadLetter, now time.Time) *table {
	t := &table{columns: []column{
		{title: "KEY"}, {title: "DIED", right: true}, {title: "DESTINATION"}, {title: "TYPE", spare: 2}, {title: "REASON"},
		{title: "TRIES", right: true, spare: 3}, {title: "ID", spare: 4}, {title: "LAST ANSWER", spare: 1, flexible: true},
	}}
	for _, d := range list {
		last := cell{"-", faint}
		if n := len(d.Attempts); n > 0 {
			last = cell{verdict(d.Attempts[n-1]), normal}
		}
		t.add(cell{clean(d.Key), normal}, cell{spell(now.Sub(d.Died)) + " ago", normal}, cell{clean(d.Destination), bold},
			cell{clean(d.Type), normal}, cell{clean(d.Reason), bad}, cell{strconv.Itoa(d.Tries), normal}, cell{clean(d.ID), normal}, last)
	}
	return t
}

// verdict is what came of a request: its status, or the error.
func verdict(a api.Attempt) string {
	if a.Status == 0 {
		return clean(cmp.Or(a.Error, a.Reason, "-"))
	}
	text := strconv.Itoa(a.Status)
	if what := cmp.Or(a.Error, a.Answer); what != "" {
		text += " " + clean(what)
	}
	return text
}

func showDead(o *options) action {
	f := newAdminFlags(o)
	return f.action(func(ctx context.Context, c *api.Client, args []string, p process) error {
		if len(args) != 1 {
			return usagef("want the key of one dead letter; 'hookferry dead ls' lists them")
		}
		d, err := c.DeadLetter(ctx, args[0])
		if err != nil {
			return err
		}
		if *f.json {
			return printJSON(p.stdout, d)
		}
		writeDead(p.screen(p.stdout), d)
		return nil
	})
}

func writeDead(s screen, d api.DeadLetter) {
	for _, line := range []struct{ label, text string }{
		{"key", d.Key},
		{"destination", d.Destination},
		{"id", d.ID},
		{"source", d.Source},
		{"type", d.Type},
		{"event", d.Event},
		{"user", d.User},
		{"accepted", clock(d.Accepted)},
		{"died", clock(d.Died)},
		{"reason", d.Reason},
		{"tries", strconv.Itoa(d.Tries)},
		{"traceparent", d.TraceParent},
	} {
		if line.text != "" {
			fmt.Fprintf(s, "%s %s\n", s.paint(faint, fmt.Sprintf("%-12s", line.label)), clean(line.text))
		}
	}
	if len(d.Attempts) > 0 {
		fmt.Fprintln(s)
		t := &table{columns: []column{{title: "TRY", right: true}, {title: "AT"}, {title: "TOOK", right: true, spare: 1}, {title: "ENDPOINT", spare: 2},
			{title: "ANSWER", flexible: true}}}
		for _, a := range d.Attempts {
			t.add(cell{strconv.Itoa(a.Try), normal}, cell{clock(a.At), normal}, cell{millis(a.Took), normal}, cell{clean(a.Endpoint), normal},
				cell{verdict(a), normal})
		}
		t.print(s)
	}
	if len(d.Body) > 0 {
		fmt.Fprintln(s)
		s.Write(appendPretty(nil, d.Body))
	}
}

// selectDead is the action that does something with dead letters, which are
// named, or selected by flags and counted first.
func selectDead(o *options, verb, done string, do func(*api.Client, context.Context, api.Selection) iter.Seq2[api.Progress, error]) action {
	read := deadFilter(o)
	all := o.boolean("all", "all of them")
	yes := o.boolean("yes", "do not ask")
	f := newAdminFlags(o)
	return f.action(func(ctx context.Context, c *api.Client, keys []string, p process) error {
		filter, err := read(time.Now())
		if err != nil {
			return err
		}
		selected := filter != api.DeadFilter{}
		switch {
		case len(keys) > 0 && (selected || *all):
			return usagef("want keys, or flags that select; not both")
		case *all && selected:
			return usagef("--all: there are flags that select some")
		case len(keys) == 0 && !*all && !selected:
			return usagef("want keys, flags that select, or --all")
		}
		selection := api.Selection{Keys: keys}
		if len(keys) == 0 {
			selection.Filter = &filter
			n, err := c.CountDead(ctx, filter)
			if err != nil {
				return err
			}
			if n == 0 {
				return &nothingError{fmt.Errorf("no dead letter is selected")}
			}
			if !*yes {
				if err := confirm(ctx, p, fmt.Sprintf("%s %s?", verb, counted(n, "dead letter"))); err != nil {
					return err
				}
			}
		}
		end, err := follow(ctx, newMeter(p.screen(p.stderr), done), jsonOut(*f.json, p), nil, do(c, ctx, selection))
		if err != nil {
			return err
		}
		if end.Done == 0 {
			return &nothingError{fmt.Errorf("no such dead letter is left")}
		}
		if !*f.json {
			fmt.Fprintf(p.stdout, "%s %s\n", counted(end.Done, "dead letter"), done)
		}
		return nil
	})
}
