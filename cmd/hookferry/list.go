package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/tenants"
)

const listTime = 30 * time.Second // after which a list ends, although the server has more pages

// list returns an action that prints a listing of the admin API, as JSON or as a table. The
// function cells makes a row of the table from a value. The function where returns the path of the
// listing. The command has a flag for each name in parameters, and the flag --limit with the
// default most. If the list is empty because there is no such destination, the action returns an error.
func list[T any](c *command, where func() (path string, err error), most int, t *table, cells func(v T, now time.Time) []any, parameters ...string) action {
	read := c.parameters(parameters...)
	limit := c.number("limit", most, 1, 1_000_000, "how `many` at most")
	return c.admin(func(ctx context.Context) error {
		path, err := where()
		if err != nil {
			return err
		}
		query := read()
		query.Set(api.ParamLimit, strconv.Itoa(min(*limit, api.PageSize)))
		now, n, more := time.Now(), 0, ""
		for page, err := range api.Pages[T](ctx, c.client, path, query) {
			if err != nil {
				return err
			}
			fits := page.Items[:min(len(page.Items), *limit-n)]
			n += len(fits)
			for _, v := range fits {
				if !c.json {
					t.add(cells(v, now)...)
				} else if err := printJSON(c.process.stdout, v); err != nil {
					return err
				}
			}
			if len(fits) < len(page.Items) || n == *limit && page.After != "" {
				more = fmt.Sprintf("There may be more; --limit %d ends the list here.", *limit)
				break
			} else if page.After != "" && time.Since(now) > listTime {
				more = fmt.Sprintf("The list ends here, after %s; --after %s goes on.", spell(listTime), page.After)
				break
			}
		}
		if id := query.Get(api.ParamDestination); n == 0 && id != "" {
			// A list may be empty because the destination has nothing, or because its id is
			// mistyped.
			path := api.Path(api.DestinationPath, id)
			if _, ofTenant := tenants.TenantOf(id); ofTenant {
				path, _ = destinationPath(api.TenantDestinationPath, id)
			}
			if _, err := api.Do[struct{}](ctx, c.client, api.Request{Path: path}); err != nil {
				return err
			}
		}
		if !c.json {
			t.print(c.process.screen(c.process.stdout))
		}
		if more != "" {
			fmt.Fprintln(c.process.stderr, more)
		}
		return nil
	})
}

// at is for a list whose path is always the same.
func at(path string) func() (string, error) { return func() (string, error) { return path, nil } }

// call returns an action that sends one request of the admin API, and prints the answer as output does.
// The arguments of the command replace the names in braces in path; the id of a tenant's destination
// replaces two. The function body may be nil. The command has a flag for each name in parameters.
func call[T any](c *command, method, path string, body func() (any, error), write func(screen, T), parameters ...string) action {
	read := c.parameters(parameters...)
	return c.admin(func(ctx context.Context) (err error) {
		r := api.Request{Method: method, Query: read()}
		if r.Path = api.Path(path, c.args[:min(len(c.args), strings.Count(path, "{"))]...); strings.Contains(path, "{name}") {
			r.Path, err = destinationPath(path, c.args[0])
		}
		if method == http.MethodDelete {
			r.Timeout = api.StoreTimeout // it may discard what waits
		}
		if body != nil && err == nil {
			r.Body, err = body()
		}
		if err != nil {
			return err
		}
		return request(ctx, c, r, write)
	})
}

// sure returns an action that asks whether to go on before it acts.
func sure(c *command, question string, act action) action {
	c.yesFlag()
	return func(ctx context.Context) error {
		if err := c.confirm(ctx, question, c.args[0]); err != nil {
			return err
		}
		return act(ctx)
	}
}

// the returns a body that is always the same.
func the(body any) func() (any, error) { return func() (any, error) { return body, nil } }

// request sends a request, and prints the answer as output does.
func request[T any](ctx context.Context, c *command, r api.Request, write func(screen, T)) error {
	v, err := api.Do[T](ctx, c.client, r)
	if err != nil {
		return err
	}
	return c.output(v, func(s screen) { write(s, v) })
}

// output prints v as a line of JSON if --json is given, else the text that write writes.
func (c *command) output(v any, write func(screen)) error {
	if c.json {
		return printJSON(c.process.stdout, v)
	}
	var text strings.Builder
	s := c.process.screen(c.process.stdout)
	s.Writer = &text
	write(s)
	_, err := io.WriteString(c.process.stdout, text.String())
	return err
}

// print prints v as JSON if --json is given, else a line of text with control characters escaped.
func (c *command) print(v any, format string, args ...any) error {
	return c.output(v, func(s screen) { s.print(format, args...) })
}
