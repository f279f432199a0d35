package main

import (
	"cmp"
	"context"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/tenants"
)

// completeAll registers the completion of the arguments, and of all flags without fixed values. The
// placeholder in the help text decides what completes a value: files, folders, or names that the
// server knows.
func (c *command) completeAll() {
	complete := func(ctx context.Context, kind, word string) ([]string, cobra.ShellCompDirective) {
		if kind == "FILE" || kind == "FOLDER" {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return c.known(ctx, kind, word), cobra.ShellCompDirectiveNoFileComp
	}
	c.cobra.ValidArgsFunction = func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		name, _ := argument(cmd.Use, len(args))
		return complete(cmd.Context(), name, word)
	}
	c.set.VisitAll(func(f *pflag.Flag) {
		kind, _ := pflag.UnquoteUsage(f)
		if f.Name == "destination" || f.Name == "source" {
			kind = f.Name
		}
		if _, fixed := c.cobra.GetFlagCompletionFunc(f.Name); !fixed {
			c.cobra.RegisterFlagCompletionFunc(f.Name, func(cmd *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
				return complete(cmd.Context(), strings.ToUpper(kind), word)
			})
		}
	})
}

// known asks the server for names that begin with word. The argument kind is the placeholder in the
// help text. A user waits at the keyboard, so after a second without an answer there are no names.
func (c *command) known(ctx context.Context, kind, word string) []string {
	if c.server == "" || c.readVariables() != nil || c.openClient() != nil {
		return nil
	}
	defer c.client.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	switch kind {
	case "DESTINATION", "DESTINATION|URL":
		return candidates(ctx, c, api.DestinationsPath, word, func(d api.Destination) (string, string) { return d.ID, "destination, " + d.State })
	case "TENANT":
		return candidates(ctx, c, api.TenantsPath, word, func(t tenants.Tenant) (string, string) { return t.ID, "tenant, " + tenantState(t) })
	case "SOURCE":
		return candidates(ctx, c, api.SourcesPath, word, func(s api.Source) (string, string) { return s.Name, "source" })
	case "AUDIENCE":
		return candidates(ctx, c, api.AudiencesPath, word, func(a api.Audience) (string, string) { return a.Name, "audience of " + a.Destination })
	case "KEY":
		return candidates(ctx, c, api.DeliveriesPath, word, func(d api.Delivery) (string, string) {
			return d.Key, string(d.State) + ", " + cmp.Or(d.Reason, d.Type)
		})
	}
	return nil
}

// candidates returns up to maxListed names in a listing that begin with word, with descriptions. It
// leaves out names with control characters.
func candidates[T any](ctx context.Context, c *command, path, word string, describe func(T) (name, what string)) (list []string) {
	query := url.Values{}
	if word != "" && path != api.DeliveriesPath && path != api.TenantsPath {
		query.Set(api.ParamQuery, word)
	}
	for v, err := range api.List[T](ctx, c.client, path, query) {
		if err != nil || len(list) == maxListed {
			break
		}
		if name, what := describe(v); strings.HasPrefix(name, word) && name == clean(name) {
			list = append(list, cobra.CompletionWithDesc(name, clean(what)))
		}
	}
	return list
}
