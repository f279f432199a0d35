package main

import (
	"cmp"
	"context"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
)

// complete completes the value of a flag with a closed list of them.
func (o *options) complete(name string, values []string) {
	o.command.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// completeAll completes the values of all other flags, and the arguments, by what
// the help calls them: a file or a folder, and what the server knows.
func (o *options) completeAll() {
	by := func(what func(args []string) string) cobra.CompletionFunc {
		return func(c *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
			kind := what(args)
			if slices.Contains([]string{"FILE", "FOLDER"}, kind) {
				return nil, cobra.ShellCompDirectiveDefault
			}
			return o.known(c.Context(), kind, word), cobra.ShellCompDirectiveNoFileComp
		}
	}
	o.command.ValidArgsFunction = by(func(args []string) string {
		name, _ := argument(o.command.Use, len(args))
		return name
	})
	o.VisitAll(func(f *pflag.Flag) {
		kind, _ := pflag.UnquoteUsage(f)
		if f.Name == "destination" || f.Name == "source" {
			kind = f.Name
		}
		if _, fixed := o.command.GetFlagCompletionFunc(f.Name); !fixed {
			o.command.RegisterFlagCompletionFunc(f.Name, by(func([]string) string { return strings.ToUpper(kind) }))
		}
	})
}

// known returns what the server knows of a kind that begins with word. It gives the
// server a second, as somebody waits at the keyboard. Without a server there are no
// completions, and no error.
func (o *options) known(ctx context.Context, kind, word string) []string {
	if o.Lookup("admin-token") == nil || o.readVariables() != nil {
		return nil
	}
	at := "admin"
	if o.Lookup(at) == nil {
		at = "from" // of listen
	}
	c, err := o.client(at)
	if err != nil {
		return nil
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	switch kind {
	case "DESTINATION", "DESTINATION|URL":
		return candidates(ctx, c, api.DestinationsPath, word, func(d api.Destination) (string, string) { return d.ID, "destination, " + d.State })
	case "SOURCE":
		return candidates(ctx, c, api.SourcesPath, word, func(s api.Source) (string, string) { return s.Name, "source" })
	case "AUDIENCE":
		return candidates(ctx, c, api.AudiencesPath, word, func(a api.Audience) (string, string) { return a.Name, "audience of " + a.Destination })
	case "KEY":
		return candidates(ctx, c, api.DeadPath, word, func(d api.DeadLetter) (string, string) {
			return d.Key, d.Destination + ": " + cmp.Or(d.Reason, d.Type)
		})
	}
	return nil
}

// candidates returns up to 500 values of a listing, with what they are: a shell asks
// before it shows so many. It leaves out names that a terminal would obey.
func candidates[T any](ctx context.Context, c *api.Client, path, word string, describe func(T) (name, what string)) (list []string) {
	query := url.Values{}
	if word != "" && path != api.DeadPath {
		query.Set(api.ParamQuery, word)
	}
	for v, err := range api.List[T](ctx, c, path, query) {
		if err != nil || len(list) == maxListed {
			break
		}
		if name, what := describe(v); strings.HasPrefix(name, word) && name == clean(name) {
			list = append(list, cobra.CompletionWithDesc(name, clean(what)))
		}
	}
	return list
}
