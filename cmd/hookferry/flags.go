package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// options has the flags of one command. An environment variable can replace a flag:
// HOOKFERRY_LOG_LEVEL for --log-level. If both are given, the flag wins. An empty variable counts
// as not set. Errors name the flag or the variable that the value came from.
//
// Lists and secrets are parsed as plain texts. The command checks them later, so that no error
// repeats their values.
type options struct {
	*pflag.FlagSet
	command *cobra.Command
	process process
	split   map[string]func(string) []string // splits the variable of a repeated flag into values
}

// Annotations of flags.
const (
	variables = "variables" // the names of the variables; the first one that is set wins
	origin    = "origin"    // the variable that the value came from
)

func variableOf(flag string) string {
	return "HOOKFERRY_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// variable lets environment variables set the flag called name. The flag's own variable comes
// first, then the variables of the flags in the argument others. If the flag may be repeated, the
// function split separates the values in the text of a variable.
func (o *options) variable(name string, split func(string) []string, others ...string) {
	list := []string{variableOf(name)}
	for _, other := range others {
		list = append(list, variableOf(other))
	}
	o.SetAnnotation(name, variables, list)
	o.Lookup(name).Usage += " [$" + list[0] + "]"
	o.split[name] = split
}

// lines splits the text of a variable into its lines, which may contain spaces.
func lines(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' })
}

// readVariables sets flags from their variables, except the flags that the user gave.
func (o *options) readVariables() (err error) {
	o.VisitAll(func(f *pflag.Flag) {
		i := slices.IndexFunc(f.Annotations[variables], func(name string) bool { return o.process.getenv(name) != "" })
		if f.Changed || i < 0 {
			return
		}
		name := f.Annotations[variables][i]
		values := []string{o.process.getenv(name)}
		if split := o.split[f.Name]; split != nil {
			values = split(values[0])
		}
		f.Annotations[origin] = []string{name}
		for _, v := range values {
			if wrong := o.Set(f.Name, v); wrong != nil && err == nil {
				_, why, _ := strings.Cut(wrong.Error(), " flag: ")
				err = usagef("invalid argument %q for %s: %s", v, name, why)
			}
		}
	})
	return err
}

// origin returns the name of the variable that set a flag, or else the flag itself.
func (o *options) origin(name string) string {
	if from := o.Lookup(name).Annotations[origin]; from != nil {
		return from[0]
	}
	return "--" + name
}

// nameOrigin returns the text of err. If the text begins with a flag whose value comes from an
// environment variable, nameOrigin replaces the flag by that variable.
func nameOrigin(c *cobra.Command, err error) string {
	text := err.Error()
	if rest, isFlag := strings.CutPrefix(text, "--"); isFlag {
		name := rest[:strings.IndexAny(rest+" ", " :")]
		if f := c.Flags().Lookup(name); f != nil && f.Annotations[origin] != nil {
			return f.Annotations[origin][0] + strings.TrimPrefix(rest, name)
		}
	}
	return text
}

func (o *options) jsonFlag() { o.Bool("json", false, "print JSON, one value a line") }

func (o *options) yesFlag() { o.Bool("yes", false, "do not ask") }

func (o *options) duration(name string, value time.Duration, usage string) *time.Duration {
	return parsed(o, name, value, usage, func(s string) (time.Duration, error) {
		d, err := time.ParseDuration(s)
		if err != nil || d <= 0 {
			return 0, errors.New("want a time above zero such as 500ms, 10s or 2m")
		}
		return d, nil
	})
}

func (o *options) number(name string, value, least, most int, usage string) *int {
	return parsed(o, name, value, usage, func(s string) (int, error) {
		n, err := strconv.Atoi(s)
		if err != nil || n < least || n > most {
			return 0, fmt.Errorf("want a number from %d to %d", least, most)
		}
		return n, nil
	})
}

// choice defines a flag that accepts only the texts in values. Its default is value, which may also
// be "".
func (o *options) choice(name, value, usage string, values []string) *string {
	v := parsed(o, name, value, usage+": "+strings.Join(values, ", "), func(s string) (string, error) { return s, oneOf(s, values) })
	o.complete(name, values)
	return v
}

// choices is like choice, but the flag may be repeated and has no default.
func (o *options) choices(name, usage string, values []string) *[]string {
	list := new([]string)
	parsed(o, name, "", usage+": "+strings.Join(values, ", ")+"; may be repeated", func(s string) (string, error) {
		*list = append(*list, s)
		return s, oneOf(s, values)
	})
	o.complete(name, values)
	return list
}

func oneOf(s string, values []string) error {
	if slices.Contains(values, s) {
		return nil
	}
	return errors.New("want one of " + strings.Join(values, ", "))
}

// parsed defines a flag, and parses its value with the function read.
func parsed[T any](o *options, name string, value T, usage string, read func(string) (T, error)) *T {
	v := &parsedValue[T]{value, read}
	o.Var(v, name, usage)
	return &v.value
}

type parsedValue[T any] struct {
	value T
	read  func(string) (T, error)
}

func (v *parsedValue[T]) String() string { return fmt.Sprint(v.value) }

func (v *parsedValue[T]) Set(s string) (err error) {
	value, err := v.read(s)
	if err == nil {
		v.value = value
	}
	return err
}

func (v *parsedValue[T]) Type() string { return "value" }
