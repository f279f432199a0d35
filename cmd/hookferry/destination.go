package main

import (
	"context"
	"errors"
	"fmt"

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
