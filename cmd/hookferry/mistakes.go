package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// An exitError is an error with its own exit status.
type exitError struct {
	error
	status int
}

func (e *exitError) Unwrap() error { return e.error }

// usagef returns an error for a command that the user invoked wrongly.
func usagef(format string, args ...any) error {
	return &exitError{fmt.Errorf(format, args...), exitUsage}
}

// nothing gives err the exit status for an object that does not exist.
func nothing(err error) error { return &exitError{err, exitNothing} }

// argument returns the name of argument n, from 0, in the usage line of a command, "" if there is
// none. In "sync AUDIENCE FILE", argument 1 is FILE. In "pause DESTINATION...", every argument is
// DESTINATION. optional says that the user may leave it out.
func argument(use string, n int) (name string, optional bool) {
	names := strings.Fields(use)[1:]
	if len(names) == 0 || n >= len(names) && !strings.Contains(names[len(names)-1], "...") {
		return "", true
	}
	name = names[min(n, len(names)-1)]
	return strings.Trim(name, "[.]"), name[0] == '[' || n >= len(names)
}

// listedBy says for the name of an argument which command lists the possible values.
var listedBy = map[string]string{
	"DESTINATION": "; 'hookferry status' lists them",
	"KEY":         "; 'hookferry deliveries ls' lists them",
	"AUDIENCE":    "; 'hookferry audience ls' lists them",
}

func checkArguments(c *cobra.Command, args []string) error {
	for i, arg := range args {
		switch name, _ := argument(c.Use, i); {
		case name == "":
			return unexpected(c, arg)
		case arg == "":
			return usagef("%s is empty", name)
		}
	}
	if name, optional := argument(c.Use, len(args)); !optional {
		return usagef("want %s, as in '%s'%s", name, strings.TrimSuffix(c.UseLine(), " [flags]"), listedBy[name])
	}
	return nil
}

// unexpected returns the error for an argument that c does not accept.
func unexpected(c *cobra.Command, arg string) error {
	if data := c.Flags().Lookup("data"); data != nil && c.HasParent() && c.Parent().Name() == "store" {
		return usagef("unexpected argument %q; the data folder is a flag: --data %s", arg, arg)
	}
	if !c.HasSubCommands() {
		return usagef("unexpected argument %q", arg)
	}
	c.SuggestionsMinimumDistance = 2
	if meant := c.SuggestionsFor(arg); len(meant) > 0 {
		return usagef("no command %q; did you mean %s?", arg, strings.Join(meant, " or "))
	}
	return usagef("no command %q; there are %s", arg, names(c))
}

// names lists the commands below c.
func names(c *cobra.Command) string {
	var list []string
	for _, below := range c.Commands() {
		if below.IsAvailableCommand() {
			list = append(list, below.Name())
		}
	}
	return strings.Join(list, ", ")
}

func flagError(c *cobra.Command, err error) error {
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok {
		return usagef("%w", err)
	}
	if c.HasSubCommands() && c.Flags().NArg() > 0 { // the flag may be one of the command that was meant
		return unexpected(c, c.Flags().Arg(0))
	}
	dashes, name := "--", unknown.GetSpecifiedName()
	if short, _, _ := strings.Cut(unknown.GetSpecifiedShortnames(), "="); short != "" {
		dashes, name = "-", short
	}
	// cobra suggests similar names for commands, but not for flags. So make commands of the flags.
	flags := &cobra.Command{SuggestionsMinimumDistance: 2}
	c.Flags().VisitAll(func(f *pflag.Flag) {
		flags.AddCommand(&cobra.Command{Use: f.Name, Run: func(*cobra.Command, []string) {}, Hidden: f.Hidden})
	})
	if meant := flags.SuggestionsFor(name); len(meant) > 0 {
		return usagef("no flag %s%s; did you mean --%s?", dashes, name, strings.Join(meant, " or --"))
	}
	return usagef("no flag %s%s", dashes, name)
}
