package main

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// origin is the annotation of a flag with the environment variable that its value came from.
const origin = "origin"

func variableOf(flag string) string {
	return "HOOKFERRY_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// variable lets an environment variable stand in for the flag called name: HOOKFERRY_LOG_LEVEL for
// --log-level. The flag wins, and an empty variable counts as not set. Without both, the variables
// of the flags in the argument others are used. If the flag may be repeated, the function split
// separates the values in the text of a variable. Errors name the flag or the variable that a value
// came from.
//
// Lists and secrets are parsed as plain texts. The command checks them later, so that no error
// repeats their values.
func (c *command) variable(name string, split func(string) []string, others ...string) {
	f := c.Lookup(name)
	f.Usage += " [$" + variableOf(name) + "]"
	c.variables = append(c.variables, func() error {
		for _, flag := range append([]string{name}, others...) {
			variable := variableOf(flag)
			text := c.getenv(variable)
			if f.Changed || text == "" {
				continue
			}
			c.SetAnnotation(name, origin, []string{variable})
			values := []string{text}
			if split != nil {
				values = split(text)
			}
			for _, v := range values {
				if err := c.Set(name, v); err != nil {
					_, why, _ := strings.Cut(err.Error(), " flag: ")
					return usagef("invalid argument %q for %s: %s", v, variable, why)
				}
			}
		}
		return nil
	})
}

// lines splits the text of a variable into its lines, which may contain spaces.
func lines(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' })
}

// readVariables sets flags from their variables, except the flags that the user gave.
func (c *command) readVariables() error {
	for _, read := range c.variables {
		if err := read(); err != nil {
			return err
		}
	}
	return nil
}

// originOf returns the name of the variable that set a flag, or else the flag itself.
func originOf(flags *pflag.FlagSet, name string) string {
	if f := flags.Lookup(name); f != nil && f.Annotations[origin] != nil {
		return f.Annotations[origin][0]
	}
	return "--" + name
}

var flagOfLine = regexp.MustCompile(`(?m)^--[a-z-]+`)

// nameOrigins returns the text of err. It replaces a flag at the beginning of a line by the
// environment variable that its value came from.
func nameOrigins(c *cobra.Command, err error) string {
	return flagOfLine.ReplaceAllStringFunc(err.Error(), func(flag string) string { return originOf(c.Flags(), flag[2:]) })
}

func (c *command) jsonFlag() { c.BoolVar(&c.json, "json", false, "print JSON, one value a line") }

func (c *command) yesFlag() { c.BoolVar(&c.yes, "yes", false, "do not ask") }

func (c *command) duration(name string, value time.Duration, usage string) *time.Duration {
	d := c.Duration(name, value, usage)
	c.check(name, func(s string) (string, error) {
		if d, err := time.ParseDuration(s); err != nil || d <= 0 {
			return "", errors.New("want a time above zero such as 500ms, 10s or 2m")
		}
		return s, nil
	})
	return d
}

func (c *command) number(name string, value, least, most int, usage string) *int {
	n := c.Int(name, value, usage)
	c.check(name, func(s string) (string, error) {
		if n, err := strconv.Atoi(s); err != nil || n < least || n > most {
			return "", fmt.Errorf("want a number from %d to %d", least, most)
		}
		return s, nil
	})
	return n
}

// choice defines a flag that accepts only the texts in values. Its default is value, which may also
// be "".
func (c *command) choice(name, value, usage string, values []string) *string {
	text := c.String(name, value, usage+": "+strings.Join(values, ", "))
	c.checkChoice(name, values)
	return text
}

// choices is like choice, but the flag may be repeated and has no default.
func (c *command) choices(name, usage string, values []string) *[]string {
	list := c.StringArray(name, nil, usage+": "+strings.Join(values, ", ")+"; may be repeated")
	c.checkChoice(name, values)
	return list
}

func (c *command) checkChoice(name string, values []string) {
	c.check(name, func(s string) (string, error) {
		if !slices.Contains(values, s) {
			return "", errors.New("want one of " + strings.Join(values, ", "))
		}
		return s, nil
	})
	c.cobra.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// check makes a flag call read with each text that it is given. The flag's value is the text that
// read returns.
func (c *command) check(name string, read func(string) (string, error)) {
	f := c.Lookup(name)
	f.Value = checkedValue{f.Value, read}
	f.DefValue = strings.TrimPrefix(f.DefValue, "[]") // the help shows no empty list
}

type checkedValue struct {
	pflag.Value
	read func(string) (string, error)
}

func (v checkedValue) Set(s string) error {
	s, err := v.read(s)
	if err != nil {
		return err
	}
	return v.Value.Set(s)
}

func (v checkedValue) Type() string { return "value" } // the help shows the default without quotes

func (c *command) text(name string) string { return c.Lookup(name).Value.String() }

// texts returns the values of a flag.
func (c *command) texts(name string) []string {
	value := c.Lookup(name).Value
	if checked, ok := value.(checkedValue); ok {
		value = checked.Value
	}
	if list, ok := value.(pflag.SliceValue); ok {
		return list.GetSlice()
	}
	return []string{value.String()}
}
