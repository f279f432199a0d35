package main

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/webhook/store"
)

// flags are the flags of a command, and the environment that may set them.
type flags struct {
	process   process
	set       *pflag.FlagSet
	cobra     *cobra.Command
	variables []func() error // each sets a flag from its environment variables
	json      bool           // --json
	yes       bool           // --yes
}

// origin is the annotation of a flag with the environment variable that its value came from.
const origin = "origin"

func variableOf(flag string) string {
	return "HOOKFERRY_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// variable lets an environment variable stand in for the flag called name: HOOKFERRY_LOG_LEVEL for
// --log-level. The flag wins, and an empty variable counts as not set. Without both, the variables of
// the flags in others are used. If the flag may be repeated, split separates the values in a variable.
// Errors name the flag or the variable that a value came from.
//
// Lists and secrets are plain texts, which the command checks later, so that no error repeats them.
func (fs *flags) variable(name string, split func(string) []string, others ...string) {
	f := fs.set.Lookup(name)
	f.Usage += " [$" + variableOf(name) + "]"
	fs.variables = append(fs.variables, func() error {
		for _, flag := range append([]string{name}, others...) {
			variable := variableOf(flag)
			text := fs.process.getenv(variable)
			if f.Changed || text == "" {
				continue
			}
			fs.set.SetAnnotation(name, origin, []string{variable})
			values := []string{text}
			if split != nil {
				values = split(text)
			}
			for _, v := range values {
				if err := fs.set.Set(name, v); err != nil {
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

// readVariables sets the flags that the user did not give from their variables.
func (fs *flags) readVariables() error {
	for _, read := range fs.variables {
		if err := read(); err != nil {
			return err
		}
	}
	return nil
}

// originOf returns the name of the variable that set a flag, or else the flag itself.
func originOf(set *pflag.FlagSet, name string) string {
	if f := set.Lookup(name); f != nil && f.Annotations[origin] != nil {
		return f.Annotations[origin][0]
	}
	return "--" + name
}

var flagOfLine = regexp.MustCompile(`(?m)^--[a-z-]+`)

// nameOrigins returns the text of err, with the environment variable that a value came from in place
// of the flag at the beginning of a line.
func nameOrigins(c *cobra.Command, err error) string {
	return flagOfLine.ReplaceAllStringFunc(err.Error(), func(flag string) string { return originOf(c.Flags(), flag[2:]) })
}

func (fs *flags) jsonFlag() { fs.set.BoolVar(&fs.json, "json", false, "print JSON, one value a line") }

func (fs *flags) yesFlag() { fs.set.BoolVar(&fs.yes, "yes", false, "do not ask") }

func (fs *flags) duration(name string, value time.Duration, usage string) *time.Duration {
	d := fs.set.Duration(name, value, usage)
	fs.check(name, func(s string) (string, error) {
		if d, err := time.ParseDuration(s); err != nil || d <= 0 {
			return "", errors.New("want a time above zero such as 500ms, 10s or 2m")
		}
		return s, nil
	})
	return d
}

func (fs *flags) number(name string, value, least, most int, usage string) *int {
	n := fs.set.Int(name, value, usage)
	fs.check(name, func(s string) (string, error) {
		if n, err := strconv.Atoi(s); err != nil || n < least || n > most {
			return "", fmt.Errorf("want a number from %d to %d", least, most)
		}
		return s, nil
	})
	return n
}

// choice defines a flag that accepts only the texts in values. Its default is value, which may also
// be "". A flag that may be repeated has no default.
func (fs *flags) choice(name, value, usage string, values []string, repeated bool) {
	usage += ": " + strings.Join(values, ", ")
	if repeated {
		fs.set.StringArray(name, nil, usage+"; may be repeated")
	} else {
		fs.set.String(name, value, usage)
	}
	fs.check(name, func(s string) (string, error) {
		if !slices.Contains(values, s) {
			return "", errors.New("want one of " + strings.Join(values, ", "))
		}
		return s, nil
	})
	fs.cobra.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// check passes each text that a flag is given through read, which may change or refuse it.
func (fs *flags) check(name string, read func(string) (string, error)) {
	f := fs.set.Lookup(name)
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

func (fs *flags) text(name string) string { return fs.set.Lookup(name).Value.String() }

// texts returns the values of a flag, which may be given by its letter.
func (fs *flags) texts(name string) []string {
	f := fs.set.Lookup(name)
	if f == nil {
		f = fs.set.ShorthandLookup(name)
	}
	value := f.Value
	if checked, ok := value.(checkedValue); ok {
		value = checked.Value
	}
	if list, ok := value.(pflag.SliceValue); ok {
		return list.GetSlice()
	}
	return []string{value.String()}
}

// parameters defines a flag for each query parameter of the admin API, of the same name, except
// --query for api.ParamQuery. The returned function returns the parameters of the flags that are set.
func (fs *flags) parameters(names ...string) func() url.Values {
	names = slices.Clone(names)
	for i, name := range names {
		p := parameterFlags[name]
		if name == deliveryState {
			name, names[i] = api.ParamState, api.ParamState
		}
		switch {
		case p.values != nil:
			fs.choice(name, p.standard, p.usage, p.values, p.repeated)
		case name == api.ParamQuery:
			fs.set.StringP("query", name, "", p.usage)
		default:
			fs.set.String(name, p.standard, p.usage)
		}
		if p.time {
			fs.check(name, func(s string) (string, error) {
				t, err := parseTime(s, time.Now())
				return t.UTC().Format(time.RFC3339Nano), err
			})
		}
	}
	return func() url.Values {
		all := url.Values{}
		for _, name := range names {
			texts := fs.texts(name)
			if name == api.ParamBy && texts[0] == "" {
				texts[0] = fs.process.getenv("USER")
			}
			if len(texts) > 0 && texts[0] != "" {
				all[name] = texts
			}
		}
		return all
	}
}

// deliveryState stands for api.ParamState in commands in which it selects deliveries, not
// destinations.
const deliveryState = "state of a delivery"

var parameterFlags = map[string]struct {
	usage    string
	values   []string // the allowed values; nil allows all
	standard string   // the default
	repeated bool
	time     bool
}{
	api.ParamDestination: {usage: "only those of the destination with this `id`"},
	api.ParamSource:      {usage: "only those of the source with this `name`"},
	api.ParamID:          {usage: "only those with this `messageId` or webhook-id"},
	api.ParamUser:        {usage: "only those of the user with this `id`"},
	api.ParamEvent:       {usage: "only those of the event with this `name`, or the beginning of one and *"},
	api.ParamQuery:       {usage: "only those that contain this `text`"},
	api.ParamType:        {usage: "only those of this `type`, such as track or invoice.paid"},
	api.ParamReason:      {usage: "only those given up for this `reason`", values: texts(store.Reasons())},
	api.ParamKind:        {usage: "only this `kind`", values: []string{"accepted", "attempt", "delivered", "dead"}, repeated: true},
	api.ParamState:       {usage: "only those in this `state`", values: api.States, repeated: true},
	deliveryState:        {usage: "only those in this `state`", values: texts(store.States()), repeated: true},
	api.ParamAfter:       {usage: "go on behind this `cursor`, which a list that took too long prints"},
	api.ParamFrom:        {usage: "only those accepted from this `time` on: 2026-01-31T12:00:00Z, 2026-01-31, or '2h ago'", time: true},
	api.ParamTo:          {usage: "only those accepted before this `time`", time: true},
	api.ParamOrder:       {usage: "which are `first`", values: []string{api.OrderNewest, api.OrderOldest}, standard: api.OrderNewest},
	api.ParamSort:        {usage: "`order` of the destinations", values: api.Sorts, standard: api.Sorts[0]},
	api.ParamBy:          {usage: "your `name` for the server's log (default $USER)"},
	api.ParamFor:         {usage: "`name` of who gets it, for the log of changes"},
	api.ParamLasts:       {usage: "`time` after which it ends, up to 24h", standard: "1h"},
	api.ParamOverlap:     {usage: "`time` for which the old secret signs beside the new one", standard: "24h"},
	api.ParamWaiting:     {usage: "what becomes of the waiting `deliveries`", values: api.WaitingChoices},
}

func texts[T ~string](all []T) (names []string) {
	for _, v := range all {
		names = append(names, string(v))
	}
	return names
}
