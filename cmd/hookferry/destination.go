package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/webhook"
)

// writeDestination prints the names and values of the settings that differ from their defaults.
func writeDestination(s screen, d api.Destination) {
	const width = 16
	s.fields(width, "destination", d.ID, "tenant", d.Tenant, "state", d.State)
	for _, e := range d.Endpoints {
		s.fields(width, "endpoint", e.URL, "  headers", strings.Join(e.Headers, ", "))
	}
	changed := "in the configuration file"
	if d.Stored != nil {
		changed = d.Stored.Changed.Format(time.RFC3339) + " by " + d.Stored.By
	}
	if of := d.Settings; of != nil {
		signed := map[bool]string{true: "yes"}[d.Signed]
		s.fields(width, "sources", strings.Join(of.Sources, ", "), "X-Signature", signed, "standardSecrets", of.StandardSecrets)
		writeSettings(s, width, &of.Settings)
	}
	if d.Tenant == "" && (d.Settings != nil || d.Stored != nil) {
		s.fields(width, "changed", changed)
	}
}

// writeSettings prints the settings that differ from their defaults, except endpoints.
func writeSettings(s screen, width int, of *webhook.Settings) {
	retries := ""
	if of.Retries != nil {
		text, _ := json.Marshal(of.Retries)
		retries = string(text)
	}
	s.fields(width, "include", strings.Join(of.Filter.Include, ", "), "exclude", strings.Join(of.Filter.Exclude, ", "),
		"timeout", of.Timeout, "window", of.Window, "schedule", of.Schedule, "retries", retries, "netHTTP", of.NetHTTP,
		"maxConcurrent", of.MaxConcurrent, "maxRate", of.MaxRate, "maxBurst", of.MaxBurst, "order", of.Order,
		"batch.maxEvents", of.Batch.MaxEvents, "batch.maxBytes", of.Batch.MaxBytes, "batch.maxWait", of.Batch.MaxWait)
}

// edit sends a request that changes a destination, and prints what was done.
func (c *command) edit(ctx context.Context, id, done string, r api.Request) error {
	return request(ctx, c, r, func(s screen, _ api.Destination) { s.print("%s %s", id, done) })
}

// editDestination returns the action that sends the document of a destination to the server.
func editDestination(c *command, method, done string) action {
	by := c.parameters(api.ParamBy)
	return c.admin(func(ctx context.Context) error {
		document, err := c.readDocument(c.args[1])
		if err != nil {
			return err
		}
		id := c.args[0]
		return c.edit(ctx, id, done, api.Request{Method: method, Path: api.Path(api.DestinationPath, id), Query: by(), Body: document})
	})
}

// readDocument reads the document of a destination from a file, or from standard input for "-". It
// contains secrets, so no error repeats any of its text.
func (c *command) readDocument(name string) (document map[string]any, err error) {
	file, err := c.open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(file)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	if yaml.Unmarshal(text, &document) != nil || document == nil {
		return nil, fmt.Errorf("%s is not YAML or JSON with keys and values", name)
	}
	return document, nil
}

func switchDestinations(c *command, done string, enabled bool) action {
	return eachDestination(c, done, api.DestinationPath, map[string]any{"disabled": !enabled})
}

// eachDestination returns the action that sends a request for each destination in the arguments,
// even if one of the requests fails. If body is not nil, the requests change the documents of the
// destinations, and the command has the flag --by.
func eachDestination(c *command, done, path string, body any) action {
	method, query := http.MethodPost, func() url.Values { return nil }
	if body != nil {
		method, query = http.MethodPatch, c.parameters(api.ParamBy)
	}
	return c.admin(func(ctx context.Context) error {
		var failed error
		for _, id := range c.args {
			r := api.Request{Method: method, Path: api.Path(path, id), Query: query(), Body: body}
			if err := c.edit(ctx, id, done, r); err != nil {
				failed = errors.Join(failed, fmt.Errorf("%s: %w", id, err))
			}
		}
		return failed
	})
}

func rotateSecret(c *command) action {
	by := c.parameters(api.ParamBy)
	finish := c.set.Bool("finish", false, "forget all secrets but the newest")
	return c.admin(func(ctx context.Context) error {
		id := c.args[0]
		r := api.Request{Method: http.MethodPost, Path: api.Path(api.SecretsPath, id), Query: by()}
		if *finish {
			r.Method = http.MethodDelete
			return c.edit(ctx, id, "has its newest secret alone", r)
		}
		return request(ctx, c, r, func(s screen, made api.NewSecret) {
			if made.Valid > 1 {
				fmt.Fprintf(c.process.stderr, "%d secrets are valid now; 'hookferry destination rotate %s --finish' leaves this one:\n", made.Valid, clean(id))
			}
			s.print("%s", made.Secret)
		})
	})
}

func deleteDestination(c *command) action {
	read := c.parameters(api.ParamBy, api.ParamWaiting)
	c.yesFlag()
	return c.admin(func(ctx context.Context) error {
		id, query := c.args[0], read()
		waiting := query.Get(api.ParamWaiting)
		if waiting == "" {
			return usagef("--waiting: want one of %s", strings.Join(api.WaitingChoices, ", "))
		}
		if err := c.confirm(ctx, "delete %s, and %s its waiting deliveries?", id, waiting); err != nil {
			return err
		}
		r := api.Request{Method: http.MethodDelete, Path: api.Path(api.DestinationPath, id), Query: query, Timeout: api.StoreTimeout}
		return request(ctx, c, r, func(s screen, became api.Changed) {
			writeDeleted(s, id, became)
		})
	})
}
