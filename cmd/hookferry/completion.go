package main

import (
	"cmp"
	"context"
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

// completeAll completes the values of all other flags, and the arguments, by their names in
// the help: a file or a folder, and what the server knows.
func (o *options) completeAll() {
	o.VisitAll(func(f *pflag.Flag) {
		what, _ := pflag.UnquoteUsage(f)
		switch {
		case what == "file" || what == "folder":
			o.command.RegisterFlagCompletionFunc(f.Name, cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault))
		case f.Name == "destination" || f.Name == "source":
			o.command.RegisterFlagCompletionFunc(f.Name, func(c *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
				return o.known(c.Context(), strings.ToUpper(f.Name), word), cobra.ShellCompDirectiveNoFileComp
			})
		}
	})
	o.command.ValidArgsFunction = func(c *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		what := argument(o.command.Use, len(args))
		if what == "FILE" {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return o.known(c.Context(), what, word), cobra.ShellCompDirectiveNoFileComp
	}
}

// argument is what the n-th argument is, as the use of a command has it: of "sync NAME
// FILE" the second is a FILE, of "pause DESTINATION..." each is a DESTINATION.
func argument(use string, n int) string {
	names := strings.Fields(strings.NewReplacer("[", "", "]", "").Replace(use))[1:]
	if len(names) == 0 || n >= len(names) && !strings.HasSuffix(names[len(names)-1], "...") {
		return ""
	}
	return strings.TrimSuffix(names[min(n, len(names)-1)], "...")
}

// known lists what the server knows of a kind that begins with a word, with the flags that
// were given. It has little time, for somebody waits at the keyboard. Without a server there
// is nothing to say, and no reason to complain.
func (o *options) known(ctx context.Context, kind, word string) (list []string) {
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
	add := func(name, what string) {
		if strings.HasPrefix(name, word) && name == clean(name) {
			list = append(list, cobra.CompletionWithDesc(name, clean(what)))
		}
	}
	// Of each there is a page: a shell would ask before it shows so many.
	switch kind {
	case "DESTINATION", "DESTINATION|URL":
		page, _ := c.Destinations(ctx, api.DestinationFilter{Query: word}, maxListed, "")
		for _, d := range page.Destinations {
			add(d.ID, "destination, "+d.State)
		}
	case "SOURCE":
		page, _ := c.Sources(ctx, word, maxListed)
		for _, s := range page.Sources {
			add(s.Name, "source")
		}
	case "NAME":
		page, _ := c.Audiences(ctx, api.AudienceFilter{Query: word}, maxListed)
		for _, a := range page.Audiences {
			add(a.Name, "audience of "+a.Destination)
		}
	case "KEY":
		for d, err := range c.Dead(ctx, api.DeadFilter{}) {
			if err != nil || len(list) == 100 {
				break
			}
			add(d.Key, d.Destination+": "+cmp.Or(d.Reason, d.Type))
		}
	}
	return list
}
