package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// An action does what its command is for, until ctx is done. A *usageError says
// that it was called wrongly. Arguments may be left out, and repeated: it
// checks how many it got.
type action func(ctx context.Context, args []string, p process) error

// command returns a command that takes the arguments that use names. Define defines
// its flags, and returns what is done once they are read.
func (p process) command(use, short, long string, define func(*options) action) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Long: long, Args: cobra.ArbitraryArgs}
	o := &options{FlagSet: c.Flags(), command: c, p: p, split: map[string]func(string) []string{}}
	act := define(o)
	o.nameVariables()
	o.completeAll()
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) > 0 && !strings.Contains(use, " ") {
			return unexpected(c, args[0])
		}
		if i := slices.Index(args, ""); i >= 0 {
			return usagef("%s is empty", argument(use, i))
		}
		if err := o.readVariables(); err != nil {
			return err
		}
		return act(c.Context(), args, p)
	}
	return c
}

// envPrefix begins the name of every environment variable that is read.
const envPrefix = "HOOKFERRY_"

// variable is the name of the environment variable of a flag.
func variable(name string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

// Annotations of flags.
const (
	variables = "variables" // the names of the environment variables, the first that is set counts
	origin    = "origin"    // the one that the value came from
)

// options are the flags of one command. A flag may be set by an environment
// variable too: --log-level by HOOKFERRY_LOG_LEVEL. The flag wins. A variable
// that is empty counts as not set. Errors name what the value came from.
//
// The values of lists and secrets are checked by the command, after they are
// read, so that no error repeats them.
type options struct {
	*pflag.FlagSet
	command *cobra.Command
	p       process
	split   map[string]func(string) []string // how the variables of lists are taken apart
}

// noVariables says that no variables stand in for the flags defined so far:
// they are about this one call of the command.
func (o *options) noVariables() {
	o.VisitAll(func(f *pflag.Flag) { o.SetAnnotation(f.Name, variables, []string{}) })
}

func (o *options) text(name, value, usage string) *string { return o.String(name, value, usage) }

func (o *options) boolean(name, usage string) *bool { return o.Bool(name, false, usage) }

// list is a flag that may be repeated. In the environment its values are one
// text, which split takes apart.
func (o *options) list(name, usage string, split func(string) []string) *[]string {
	o.split[name] = split
	return o.StringArray(name, nil, usage)
}

// lines takes the values of a list apart that may hold spaces.
func lines(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' })
}

// single is for a list whose variable holds one value.
func single(s string) []string { return []string{s} }

func (o *options) duration(name string, value time.Duration, usage string) *time.Duration {
	return parsed(o, name, value, usage, func(s string, _ time.Duration) (time.Duration, error) {
		d, err := time.ParseDuration(s)
		if err != nil || d <= 0 {
			return 0, errors.New("want a time above zero such as 500ms, 10s or 2m")
		}
		return d, nil
	})
}

func (o *options) number(name string, value, least, most int, usage string) *int {
	return parsed(o, name, value, usage, func(s string, _ int) (int, error) {
		n, err := strconv.Atoi(s)
		if err != nil || n < least || n > most {
			return 0, fmt.Errorf("want a number from %d to %d", least, most)
		}
		return n, nil
	})
}

// choice is a flag with a closed list of values. The value may be "".
func (o *options) choice(name, value, usage string, values ...string) *string {
	chosen := parsed(o, name, value, usage+": "+strings.Join(values, ", "), func(s string, _ string) (string, error) {
		return s, oneOf(s, values)
	})
	o.complete(name, values)
	return chosen
}

// choices is choice for a flag that may be repeated.
func (o *options) choices(name, usage string, values ...string) *[]string {
	chosen := parsed(o, name, nil, usage+": "+strings.Join(values, ", ")+"; may be repeated", func(s string, before []string) ([]string, error) {
		return append(before, s), oneOf(s, values)
	})
	o.complete(name, values)
	return chosen
}

func oneOf(s string, values []string) error {
	if slices.Contains(values, s) {
		return nil
	}
	return errors.New("want one of " + strings.Join(values, ", "))
}

// parsed is a flag whose text read reads, which has the value so far.
func parsed[T any](o *options, name string, value T, usage string, read func(s string, before T) (T, error)) *T {
	v := &parsedValue[T]{value, read}
	o.Var(v, name, usage)
	return &v.value
}

type parsedValue[T any] struct {
	value T
	read  func(s string, before T) (T, error)
}

func (v *parsedValue[T]) String() string {
	if list, ok := any(v.value).([]string); ok && len(list) == 0 {
		return ""
	}
	return fmt.Sprint(v.value)
}

func (v *parsedValue[T]) Set(s string) error {
	value, err := v.read(s, v.value)
	if err == nil {
		v.value = value
	}
	return err
}

func (v *parsedValue[T]) Type() string { return "value" }

// nameVariables gives each flag its variable, in its help too.
func (o *options) nameVariables() {
	o.VisitAll(func(f *pflag.Flag) {
		names, set := f.Annotations[variables]
		if !set {
			names = []string{variable(f.Name)}
			o.SetAnnotation(f.Name, variables, names)
		}
		if len(names) > 0 {
			f.Usage += " [$" + names[0] + "]"
		}
	})
}

// readVariables sets the flags that were not given by their variables.
func (o *options) readVariables() (err error) {
	o.VisitAll(func(f *pflag.Flag) {
		if f.Changed || err != nil {
			return
		}
		for _, name := range f.Annotations[variables] {
			value := o.p.getenv(name)
			if value == "" {
				continue
			}
			values := []string{value}
			if split := o.split[f.Name]; split != nil {
				values = split(value)
			}
			f.Annotations[origin] = []string{name}
			for _, v := range values {
				if wrong := o.Set(f.Name, v); wrong != nil {
					_, why, _ := strings.Cut(wrong.Error(), " flag: ")
					err = usagef("invalid argument %q for %s: %s", v, name, why)
				}
			}
			return
		}
	})
	return err
}

// origin returns what a flag was set by: its variable, or else the flag itself.
func (o *options) origin(name string) string {
	if from := o.Lookup(name).Annotations[origin]; from != nil {
		return from[0]
	}
	return "--" + name
}

// inVariables is the text of err, with the variable in place of the flag that it begins
// with, if the flag was set by one.
func inVariables(c *cobra.Command, err error) string {
	text := err.Error()
	if rest, isFlag := strings.CutPrefix(text, "--"); isFlag {
		name := rest[:max(strings.IndexAny(rest+" ", " :"), 0)]
		if f := c.Flags().Lookup(name); f != nil && f.Annotations[origin] != nil {
			return f.Annotations[origin][0] + strings.TrimPrefix(rest, name)
		}
	}
	return text
}
