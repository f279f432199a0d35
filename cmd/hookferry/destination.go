package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
)

const (
	pauseHelp = `Pause stops attempts for destinations. Calls for them are taken, and wait until
resume, also after a restart.

Examples:
  hookferry pause acme
`
	resumeHelp = `Resume ends the pause of destinations.

Examples:
  hookferry resume acme
`
)

const destinationHelp = `Destination shows, makes, changes and deletes destinations while the server
runs. They are kept in its store, and count on all servers of the store within
two seconds. What the configuration file names is changed there.

Examples:
  hookferry destination set acme acme.yaml
  hookferry destination rotate acme
  hookferry destination delete acme --waiting discard
`

const (
	destinationShowHelp = `Print the settings of a destination. Secrets, values of headers and credentials
in URLs are not shown to anybody.

Examples:
  hookferry destination show acme
`
	destinationSetHelp = `Make a destination, or replace all of its settings. The file is YAML or JSON
with the keys that a destination has in the configuration file, and sources: the
names of those whose calls it gets. A dash is the standard input. Secrets and
certificates are in the file themselves: ${NAME} and file:PATH have no meaning.

Examples:
  hookferry destination set acme acme.yaml
  hookferry destination set acme - <<END
  sources: [website]
  endpoints:
  - url: https://acme.example/hook
  END
`
	destinationChangeHelp = `Change the settings that are in the file, and leave the others as they are. A
key that is null gets its default. The file is that of 'destination set'.

Examples:
  echo 'timeout: 2s' | hookferry destination change acme -
`
	destinationDisableHelp = `Keep what is for destinations until they are enabled.

Examples:
  hookferry destination disable acme
`
	destinationEnableHelp = `Deliver to destinations again that 'destination disable' has disabled. For those
that the server has disabled itself, see 'hookferry resume'.

Examples:
  hookferry destination enable acme
`
	destinationRotateHelp = `Make another secret for Standard Webhooks, and print it, for the last time. The
old one stays valid: requests are signed by both, so the receiver may move to
the new one at any time. Then --finish forgets the old one.

Examples:
  hookferry destination rotate acme
  hookferry destination rotate acme --finish
`
	destinationDeleteHelp = `Delete a destination, and say what becomes of what waits for it: it is kept, for
a destination with the same id that is made later, or discarded.

Examples:
  hookferry destination delete acme --waiting keep
  hookferry destination delete acme --waiting discard --yes
`
)

func showDestination(o *options) action {
	f := newAdminFlags(o)
	return f.action(func(ctx context.Context, c *api.Client, args []string, p process) error {
		id, err := oneDestination(args)
		if err != nil {
			return err
		}
		d, err := c.Destination(ctx, id)
		if err != nil || *f.json {
			return errors.Join(err, printIf(err == nil, p, d))
		}
		for _, line := range settingLines(&d) {
			fmt.Fprintf(p.stdout, "%-17s%s\n", line[0], clean(line[1]))
		}
		return nil
	})
}

// settingLines are the names and the values of the settings that are not the default.
func settingLines(d *api.Destination) (lines [][2]string) {
	add := func(name string, is bool, value any) {
		if is {
			lines = append(lines, [2]string{name, fmt.Sprint(value)})
		}
	}
	add("destination", true, d.ID)
	add("state", true, d.State)
	for _, e := range d.Endpoints {
		add("endpoint", true, e.URL)
		add("  headers", len(e.Headers) > 0, strings.Join(e.Headers, ", "))
	}
	if s := d.Settings; s != nil {
		add("sources", true, strings.Join(s.Sources, ", "))
		add("X-Signature", d.Signed, "yes")
		add("standardSecrets", s.StandardSecrets > 0, s.StandardSecrets)
		if s.Filter != nil {
			add("include", len(s.Filter.Include) > 0, strings.Join(s.Filter.Include, ", "))
			add("exclude", len(s.Filter.Exclude) > 0, strings.Join(s.Filter.Exclude, ", "))
		}
		add("timeout", s.Timeout != "", s.Timeout)
		add("window", s.Window != "", s.Window)
		add("schedule", s.Schedule != "", s.Schedule)
		add("netHTTP", s.NetHTTP, s.NetHTTP)
		add("maxConcurrent", s.MaxConcurrent > 0, s.MaxConcurrent)
		add("maxRate", s.MaxRate > 0, s.MaxRate)
		add("maxBurst", s.MaxBurst > 0, s.MaxBurst)
	}
	if s := d.Stored; s != nil {
		add("changed", true, s.Changed.Format(time.RFC3339)+" by "+s.By)
	} else {
		add("changed", d.Settings != nil, "in the configuration file")
	}
	return lines
}

// oneDestination returns the argument of a command that has one.
func oneDestination(args []string) (string, error) {
	if len(args) != 1 || args[0] == "" {
		return "", usagef("want one destination")
	}
	return args[0], nil
}

// byFlag says who changes a destination.
func byFlag(o *options) func(p process) string {
	by := o.text("by", "", "your `name` for the server's log (default $USER)")
	return func(p process) string { return cmp.Or(*by, p.getenv("USER")) }
}

func setDestination(o *options) action {
	return editDestination(o, http.MethodPut, "set")
}

func changeDestination(o *options) action {
	return editDestination(o, http.MethodPatch, "changed")
}

// editDestination is the action that sends a document.
func editDestination(o *options, method, done string) action {
	by := byFlag(o)
	f := newAdminFlags(o)
	return f.action(func(ctx context.Context, c *api.Client, args []string, p process) error {
		if len(args) != 2 {
			return usagef("want a destination, and a file with its settings or -")
		}
		document, err := readDocument(args[1], p)
		if err != nil {
			return err
		}
		d, err := c.EditDestination(ctx, method, args[0], by(p), document)
		if err != nil || *f.json {
			return errors.Join(err, printIf(err == nil, p, d))
		}
		_, err = fmt.Fprintf(p.stdout, "%s %s\n", clean(d.ID), done)
		return err
	})
}

// printIf prints v as JSON if ok.
func printIf(ok bool, p process, v any) error {
	if !ok {
		return nil
	}
	return printJSON(p.stdout, v)
}

func disableDestination(o *options) action { return switchDestination(o, "disabled", false) }
func enableDestination(o *options) action  { return switchDestination(o, "enabled", true) }

// switchDestination is the action that enables or disables destinations.
func switchDestination(o *options, done string, enabled bool) action {
	by := byFlag(o)
	return eachDestination(o, done, func(c *api.Client, ctx context.Context, id string) (api.Destination, error) {
		return c.EditDestination(ctx, http.MethodPatch, id, by(o.p), map[string]any{"enabled": enabled})
	})
}

func rotateSecret(o *options) action {
	by := byFlag(o)
	finish := o.boolean("finish", "forget all secrets but the newest")
	f := newAdminFlags(o)
	return f.action(func(ctx context.Context, c *api.Client, args []string, p process) error {
		id, err := oneDestination(args)
		if err != nil {
			return err
		}
		if *finish {
			d, err := c.DropSecrets(ctx, id, by(p))
			if err != nil || *f.json {
				return errors.Join(err, printIf(err == nil, p, d))
			}
			_, err = fmt.Fprintf(p.stdout, "%s has its newest secret alone\n", clean(id))
			return err
		}
		made, err := c.AddSecret(ctx, id, by(p))
		if err != nil || *f.json {
			return errors.Join(err, printIf(err == nil, p, made))
		}
		if made.Valid > 1 {
			fmt.Fprintf(p.stderr, "%d secrets are valid now; 'hookferry destination rotate %s --finish' leaves this one:\n", made.Valid, clean(id))
		}
		_, err = fmt.Fprintln(p.stdout, made.Secret)
		return err
	})
}

func deleteDestination(o *options) action {
	by := byFlag(o)
	waiting := o.text("waiting", "", "what becomes of what waits: `"+strings.Join(api.WaitingChoices, "|")+"`")
	o.complete("waiting", api.WaitingChoices)
	yes := o.boolean("yes", "do not ask")
	f := newAdminFlags(o)
	return f.action(func(ctx context.Context, c *api.Client, args []string, p process) error {
		id, err := oneDestination(args)
		if err != nil {
			return err
		}
		if !slices.Contains(api.WaitingChoices, *waiting) {
			return usagef("--waiting: want one of %s", strings.Join(api.WaitingChoices, ", "))
		}
		if !*yes {
			if err := confirm(ctx, p, fmt.Sprintf("delete %s, and %s what waits for it?", clean(id), *waiting)); err != nil {
				return err
			}
		}
		became, err := c.DeleteDestination(ctx, id, by(p), *waiting)
		if err != nil || *f.json {
			return errors.Join(err, printIf(err == nil, p, became))
		}
		fmt.Fprintf(p.stdout, "%s deleted\n", clean(id))
		if *waiting == api.WaitingKeep {
			return nil
		}
		err = printChanged(p, false, became, "discarded", "")
		var nothing *nothingError
		if errors.As(err, &nothing) {
			return nil // waited
		}
		return err
	})
}

func pause(o *options) action  { return eachDestination(o, "paused", (*api.Client).Pause) }
func resume(o *options) action { return eachDestination(o, "resumed", (*api.Client).Resume) }

// eachDestination is the action that does something to each of the destinations
// that are named.
func eachDestination(o *options, done string, do func(*api.Client, context.Context, string) (api.Destination, error)) action {
	f := newAdminFlags(o)
	return f.action(func(ctx context.Context, c *api.Client, ids []string, p process) error {
		if len(ids) == 0 {
			return usagef("want at least one destination; 'hookferry status' lists them")
		}
		var failed error
		for _, id := range ids {
			d, err := do(c, ctx, id)
			switch {
			case err != nil:
				failed = errors.Join(failed, fmt.Errorf("%s: %w", id, err))
			case *f.json:
				err = printJSON(p.stdout, d)
			default:
				_, err = fmt.Fprintf(p.stdout, "%s %s\n", clean(id), done)
			}
			if err != nil && failed == nil {
				return err
			}
		}
		return failed
	})
}
