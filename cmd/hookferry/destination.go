package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
)

// writeDestination prints the names and values of the settings that differ from their defaults.
func writeDestination(s screen, d api.Destination) {
	add := func(name string, is bool, value any) {
		if is {
			fmt.Fprintf(s, "%-17s%s\n", name, clean(fmt.Sprint(value)))
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
}

// byFlag defines --by, the user's name for the server's log. The returned function returns the name
// as a query parameter.
func byFlag(o *options) func() url.Values {
	by := o.String("by", "", "your `name` for the server's log (default $USER)")
	return func() url.Values {
		query := url.Values{}
		if name := cmp.Or(*by, o.process.getenv("USER")); name != "" {
			query.Set(api.ParamBy, name)
		}
		return query
	}
}

// edit sends a request that changes a destination, and prints what was done.
func (c *call) edit(ctx context.Context, id, done string, r api.Request) error {
	d, err := api.Do[api.Destination](ctx, c.client, r)
	if err != nil {
		return err
	}
	return c.print(d, "%s %s", id, done)
}

// editDestination returns the action that sends the document of a destination to the server.
func editDestination(o *options, method, done string) action {
	by := byFlag(o)
	return o.admin(func(ctx context.Context, c *call) error {
		document, err := c.readDocument(c.args[1])
		if err != nil {
			return err
		}
		id := c.args[0]
		return c.edit(ctx, id, done, api.Request{Method: method, Path: api.Path(api.DestinationPath, id), Query: by(), Body: document})
	})
}

// maxDocument bounds the document of a destination in bytes, as the server does.
const maxDocument = 1 << 20

// readDocument reads the document of a destination from a file, or from standard input if name is
// "-". The document contains secrets, so no error repeats any of its text.
func (c *call) readDocument(name string) (document map[string]any, err error) {
	file, _, err := c.openLines(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxDocument+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("reading %s: %w", name, err)
	case len(text) > maxDocument:
		return nil, fmt.Errorf("%s has more than %d bytes", name, maxDocument)
	case yaml.Unmarshal(text, &document) != nil || document == nil:
		return nil, fmt.Errorf("%s is not YAML or JSON with keys and values", name)
	}
	return document, nil
}

func switchDestinations(o *options, done string, enabled bool) action {
	return eachDestination(o, done, api.DestinationPath, map[string]any{"enabled": enabled})
}

// eachDestination returns the action that sends a request for each destination that the arguments
// name. If one request fails, the action continues with the other destinations. If body is not nil,
// the request changes the document of a destination, and the command has the flag --by.
func eachDestination(o *options, done, path string, body any) action {
	method, by := http.MethodPost, func() url.Values { return nil }
	if body != nil {
		method, by = http.MethodPatch, byFlag(o)
	}
	return o.admin(func(ctx context.Context, c *call) error {
		var failed error
		for _, id := range c.args {
			if err := c.edit(ctx, id, done, api.Request{Method: method, Path: api.Path(path, id), Query: by(), Body: body}); err != nil {
				failed = errors.Join(failed, fmt.Errorf("%s: %w", id, err))
			}
		}
		return failed
	})
}

func rotateSecret(o *options) action {
	by := byFlag(o)
	finish := o.Bool("finish", false, "forget all secrets but the newest")
	return o.admin(func(ctx context.Context, c *call) error {
		id := c.args[0]
		r := api.Request{Method: http.MethodPost, Path: api.Path(api.SecretsPath, id), Query: by()}
		if *finish {
			r.Method = http.MethodDelete
			return c.edit(ctx, id, "has its newest secret alone", r)
		}
		made, err := api.Do[api.NewSecret](ctx, c.client, r)
		if err != nil {
			return err
		}
		if made.Valid > 1 && !c.json {
			fmt.Fprintf(c.stderr, "%d secrets are valid now; 'hookferry destination rotate %s --finish' leaves this one:\n", made.Valid, clean(id))
		}
		return c.print(made, "%s", made.Secret)
	})
}

func deleteDestination(o *options) action {
	by := byFlag(o)
	waiting := o.String("waiting", "", "what becomes of the waiting deliveries: `"+strings.Join(api.WaitingChoices, "|")+"`")
	o.complete("waiting", api.WaitingChoices)
	o.yesFlag()
	return o.admin(func(ctx context.Context, c *call) error {
		id := c.args[0]
		if !slices.Contains(api.WaitingChoices, *waiting) {
			return usagef("--waiting: want one of %s", strings.Join(api.WaitingChoices, ", "))
		}
		if err := c.confirm(ctx, "delete %s, and %s its waiting deliveries?", id, *waiting); err != nil {
			return err
		}
		query := by()
		query.Set(api.ParamWaiting, *waiting)
		became, err := api.Do[api.Changed](ctx, c.client,
			api.Request{Method: http.MethodDelete, Path: api.Path(api.DestinationPath, id), Query: query, Timeout: api.StoreTimeout})
		if err != nil {
			return err
		}
		if err := c.print(became, "%s deleted", id); err != nil || c.json || *waiting == api.WaitingKeep {
			return err
		}
		c.printChanged(became, "discarded")
		return nil
	})
}
