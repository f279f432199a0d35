package main

import (
	"context"
	"fmt"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
)

// list returns an action that prints a listing of the admin API, as a table or as JSON. The command
// has a flag for each name in parameters, and the flag --limit, whose default is the argument most.
// If the user gives an argument, it becomes the parameter "destination". The function cells makes a
// row of a value.
func list[T any](o *options, path string, most int, t *table, cells func(v T, now time.Time) []any, parameters ...string) action {
	read := o.parameters(parameters...)
	limit := o.number("limit", most, 1, 1_000_000, "how `many` at most")
	return o.admin(func(ctx context.Context, c *call) error {
		query := read()
		if len(c.args) > 0 {
			query.Set(api.ParamDestination, c.args[0])
		}
		now, n, more := time.Now(), 0, false
		for v, err := range api.List[T](ctx, c.client, path, query) {
			if err != nil {
				return err
			}
			if n++; n > *limit {
				more = true
				break
			}
			if !c.json {
				t.add(cells(v, now)...)
			} else if err := printJSON(c.stdout, v); err != nil {
				return err
			}
		}
		if !c.json {
			t.print(c.screen(c.stdout))
		}
		if more {
			fmt.Fprintf(c.stderr, "There are more; --limit %d ends the list here.\n", *limit)
		}
		return nil
	})
}

// show returns an action that prints one value of the admin API, as JSON or by calling the function
// write. The argument of the command replaces the name in braces in path.
func show[T any](o *options, path string, write func(screen, T)) action {
	return o.admin(func(ctx context.Context, c *call) error {
		v, err := api.Do[T](ctx, c.client, api.Request{Path: api.Path(path, c.args[0])})
		if err != nil {
			return err
		}
		if c.json {
			return printJSON(c.stdout, v)
		}
		write(c.screen(c.stdout), v)
		return nil
	})
}

// print prints v as JSON if --json is given, else a line of text with control characters escaped.
func (c *call) print(v any, format string, args ...any) error {
	if c.json {
		return printJSON(c.stdout, v)
	}
	_, err := fmt.Fprintln(c.stdout, clean(fmt.Sprintf(format, args...)))
	return err
}
