package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// envPrefix begins the name of every environment variable that is read.
const envPrefix = "HOOKFERRY_"

// options are the flags of one command. A flag may be set by an environment
// variable too: -log-level by HOOKFERRY_LOG_LEVEL. The flag wins. A variable
// that is empty counts as not set. Errors name what the value came from.
//
// The values of lists and secrets are checked by the command, after they are
// read, so that no error repeats them.
type options struct {
	set  *flag.FlagSet
	help string
	// split holds, for each flag that may be repeated, how its environment
	// variable is taken apart.
	split map[string]func(string) []string
	// flagOnly names the flags that no variable stands in for.
	flagOnly map[string]bool
	// second names another variable of a flag, read where its own is not set.
	second map[string]string
	// from names the variable of each flag that was set by one.
	from map[string]string
}

// newOptions returns no flags yet. The help is what -h prints above the list
// of flags.
func newOptions(name, help string) *options {
	set := flag.NewFlagSet(name, flag.ContinueOnError)
	set.SetOutput(io.Discard)
	return &options{set: set, help: help, split: map[string]func(string) []string{}, flagOnly: map[string]bool{},
		second: map[string]string{}, from: map[string]string{}}
}

// noVariables says that no variables stand in for the flags defined so far:
// they are about this one call of the command.
func (o *options) noVariables() {
	o.set.VisitAll(func(f *flag.Flag) { o.flagOnly[f.Name] = true })
}

func (o *options) text(name, value, usage string) *string {
	return o.set.String(name, value, usage)
}

func (o *options) boolean(name, usage string) *bool {
	return o.set.Bool(name, false, usage)
}

func (o *options) duration(name string, value time.Duration, usage string) *time.Duration {
	d := &durationValue{value}
	o.set.Var(d, name, usage)
	return &d.d
}

func (o *options) number(name string, value, least, most int, usage string) *int {
	n := &numberValue{value, least, most}
	o.set.Var(n, name, usage)
	return &n.n
}

// choice is a flag with a closed list of values; the first is the default.
func (o *options) choice(name, usage string, values ...string) *string {
	c := &choiceValue{values[0], values}
	o.set.Var(c, name, usage+": "+strings.Join(values, ", "))
	return &c.s
}

// oneOf is a flag with a closed list of values, and "" if it is left out.
func (o *options) oneOf(name, usage string, values ...string) *string {
	c := &choiceValue{"", values}
	o.set.Var(c, name, usage+": "+strings.Join(values, ", "))
	return &c.s
}

// someOf is oneOf for a flag that may be repeated.
func (o *options) someOf(name, usage string, values ...string) *[]string {
	l := &listValue{of: values}
	o.set.Var(l, name, usage+": "+strings.Join(values, ", ")+"; may be repeated")
	return &l.values
}

// list is a flag that may be repeated. In the environment its values are one
// text, which split takes apart.
func (o *options) list(name, usage string, split func(string) []string) *[]string {
	l := &listValue{}
	o.set.Var(l, name, usage)
	o.split[name] = split
	return &l.values
}

// lines takes the values of a list apart that may hold spaces.
func lines(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' })
}

// single is for a list whose variable holds one value.
func single(s string) []string { return []string{s} }

// parse reads the flags from args, and from the environment those that args
// leave out. It returns the arguments, which may stand before flags, behind
// them, and between; behind "--" all are arguments. Asked for help, it prints
// that and returns flag.ErrHelp.
func (o *options) parse(args []string, p process) (rest []string, err error) {
	for len(args) > 0 {
		if err := o.set.Parse(args); err != nil {
			if errors.Is(err, flag.ErrHelp) {
				o.writeHelp(p.stdout)
				return nil, err
			}
			return nil, &usageError{strings.Replace(err.Error(), "flag provided but not defined: ", "no flag ", 1)}
		}
		read := len(args) - o.set.NArg()
		if read > 0 && args[read-1] == "--" {
			return append(rest, args[read:]...), o.fromEnvironment(p)
		}
		args = args[read:]
		if len(args) > 0 {
			rest, args = append(rest, args[0]), args[1:]
		}
	}
	return rest, o.fromEnvironment(p)
}

// fromEnvironment sets the flags that were not given by their variables.
func (o *options) fromEnvironment(p process) (err error) {
	given := o.given()
	o.set.VisitAll(func(f *flag.Flag) {
		if given[f.Name] || o.flagOnly[f.Name] || err != nil {
			return
		}
		for _, name := range []string{variable(f.Name), o.second[f.Name]} {
			if value := p.getenv(name); name != "" && value != "" {
				err = o.fromVariable(f, name, value)
				return
			}
		}
	})
	return err
}

// given has the flags that were set, by themselves or by their variables.
func (o *options) given() map[string]bool {
	given := map[string]bool{}
	o.set.Visit(func(f *flag.Flag) { given[f.Name] = true })
	return given
}

func (o *options) fromVariable(f *flag.Flag, name, value string) error {
	o.from[f.Name] = name
	values := []string{value}
	if split := o.split[f.Name]; split != nil {
		values = split(value)
	}
	for _, v := range values {
		if err := o.set.Set(f.Name, v); err != nil {
			return usagef("invalid value %q for %s: %v", v, name, err)
		}
	}
	return nil
}

// origin returns what a flag was set by: its variable, or else the flag itself.
func (o *options) origin(name string) string {
	if variable := o.from[name]; variable != "" {
		return variable
	}
	return "-" + name
}

// named returns err with the variable in place of the flag that its text begins with,
// if the flag was set by one.
func (o *options) named(err error) error {
	if err == nil {
		return nil
	}
	rest, isFlag := strings.CutPrefix(err.Error(), "-")
	name, _, _ := strings.Cut(rest, " ")
	name = strings.TrimSuffix(name, ":")
	if variable := o.from[name]; isFlag && variable != "" {
		return &namedError{variable + strings.TrimPrefix(rest, name), err}
	}
	return err
}

// A namedError is an error with another text.
type namedError struct {
	text string
	err  error
}

func (e *namedError) Error() string { return e.text }
func (e *namedError) Unwrap() error { return e.err }

// variable is the name of the environment variable of a flag.
func variable(name string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

func (o *options) writeHelp(w io.Writer) {
	fmt.Fprint(w, o.help)
	title := "\nFlags, and the environment variables that stand in for them:\n"
	o.set.VisitAll(func(f *flag.Flag) {
		fmt.Fprint(w, title)
		title = ""
		what, usage := flag.UnquoteUsage(f)
		env := ""
		if !o.flagOnly[f.Name] {
			env = variable(f.Name)
		}
		line := fmt.Sprintf("  -%-26s %s", f.Name+" "+what, env)
		if f.DefValue != "" && f.DefValue != "false" {
			usage += fmt.Sprintf(" (default %s)", f.DefValue)
		}
		fmt.Fprintln(w, strings.TrimRight(line, " "))
		writeWrapped(w, "      ", usage)
	})
}

// helpWidth is how many columns a terminal has at least, for which help is written.
const helpWidth = 80

// writeWrapped writes the words of a text in lines of up to helpWidth columns, each
// behind an indent.
func writeWrapped(w io.Writer, indent, text string) {
	line := indent
	for _, word := range strings.Fields(text) {
		if line != indent && columns(line)+1+columns(word) > helpWidth {
			fmt.Fprintln(w, line)
			line = indent
		}
		if line != indent {
			line += " "
		}
		line += word
	}
	fmt.Fprintln(w, line)
}

type durationValue struct{ d time.Duration }

func (v *durationValue) String() string { return v.d.String() }

func (v *durationValue) Set(s string) error {
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		return errors.New("want a time above zero such as 500ms, 10s or 2m")
	}
	v.d = d
	return nil
}

type numberValue struct{ n, least, most int }

func (v *numberValue) String() string { return strconv.Itoa(v.n) }

func (v *numberValue) Set(s string) error {
	n, err := strconv.Atoi(s)
	if err != nil || n < v.least || n > v.most {
		return fmt.Errorf("want a number from %d to %d", v.least, v.most)
	}
	v.n = n
	return nil
}

type choiceValue struct {
	s      string
	values []string
}

func (v *choiceValue) String() string { return v.s }

func (v *choiceValue) Set(s string) error {
	if !slices.Contains(v.values, s) {
		return errors.New("want one of " + strings.Join(v.values, ", "))
	}
	v.s = s
	return nil
}

type listValue struct {
	values []string
	of     []string // what they may be; nil is anything
}

func (v *listValue) String() string { return "" }

func (v *listValue) Set(s string) error {
	if v.of != nil && !slices.Contains(v.of, s) {
		return errors.New("want one of " + strings.Join(v.of, ", "))
	}
	v.values = append(v.values, s)
	return nil
}
