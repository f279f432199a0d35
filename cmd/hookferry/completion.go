package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
)

const completionHelp = `Usage: hookferry completion bash|zsh|fish

Completion prints a script with which a shell completes what is typed after
hookferry: commands, flags and their values, and the destinations, audiences and
sources of the server that is running.

Examples:
  source <(hookferry completion bash)    # in ~/.bashrc
  source <(hookferry completion zsh)     # in ~/.zshrc, after compinit
  hookferry completion fish > ~/.config/fish/completions/hookferry.fish
`

const candidatesHelp = `Usage: hookferry completion candidates -- [WORD...]

Print what the last word may become, one candidate a line, each with a tab and
what it is behind it. The scripts ask this. The exit status is 3 where any file
will do.

Examples:
  hookferry completion candidates -- dead re
`

func completionCommands() []command {
	list := []command{}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		list = append(list, command{
			name: shell, summary: "print the script for " + shell, help: completionHelp,
			define: func(*options) action {
				return func(_ context.Context, _ []string, p process) error {
					_, err := fmt.Fprint(p.stdout, completionScripts[shell])
					return err
				}
			},
		})
	}
	return append(list, command{name: "candidates", summary: "print what the last word may become", help: candidatesHelp, args: "WORD...", define: printCandidates})
}

// The scripts know nothing of the commands: they ask the program, so that they
// fit whatever version is installed.
var completionScripts = map[string]string{
	"bash": `# Completion of hookferry for bash.
_hookferry() {
	local list word
	COMPREPLY=()
	if ! list=$("${COMP_WORDS[0]}" completion candidates -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null); then
		compopt -o default
		return
	fi
	while IFS=$'\t' read -r word _; do
		if [[ -n $word ]]; then
			COMPREPLY+=("$(printf %q "$word")")
		fi
	done <<<"$list"
}
complete -F _hookferry hookferry
`,
	"zsh": `#compdef hookferry
# Completion of hookferry for zsh.
_hookferry() {
	local list line
	local -a candidates
	if ! list=$("${(Q)words[1]}" completion candidates -- "${(@Q)words[2,CURRENT]}" 2>/dev/null); then
		_files
		return
	fi
	for line in "${(@f)list}"; do
		if [[ -n $line ]]; then
			candidates+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
		fi
	done
	_describe -t words 'hookferry' candidates
}
if [[ $funcstack[1] == _hookferry ]]; then
	_hookferry "$@"
else
	compdef _hookferry hookferry
fi
`,
	"fish": `# Completion of hookferry for fish.
function __hookferry_candidates
	set -l words (commandline -opc) (commandline -ct)
	$words[1] completion candidates -- $words[2..-1] 2>/dev/null
end
complete -c hookferry -f -a '(__hookferry_candidates)'
complete -c hookferry -n 'not __hookferry_candidates >/dev/null' -F
`,
}

// A candidate is a word that may be meant, and what it is.
type candidate struct{ word, what string }

// errAnyFile says that the word is the name of a file.
var errAnyFile = errors.New("any file")

func printCandidates(*options) action {
	return func(ctx context.Context, words []string, p process) error {
		list, err := candidates(ctx, words, p)
		if errors.Is(err, errAnyFile) {
			return &nothingError{err}
		}
		for _, c := range list {
			if _, err := fmt.Fprintf(p.stdout, "%s\t%s\n", c.word, c.what); err != nil {
				return err
			}
		}
		return err
	}
}

// candidates lists what the last of the words behind "hookferry" may become.
func candidates(ctx context.Context, words []string, p process) ([]candidate, error) {
	if len(words) == 0 {
		words = []string{""}
	}
	words, last := words[:len(words)-1], words[len(words)-1]
	c, name, rest, err := findCommand(words)
	if err != nil {
		return nil, nil // there is a word that is no command
	}
	var list []candidate
	if c.define == nil {
		for _, sub := range c.commands {
			list = append(list, candidate{sub.name, sub.summary})
		}
		return beginning(last, list), nil
	}
	o := newOptions(name, c.help)
	c.define(o)
	arguments, pending := o.scan(rest)
	switch flagged := strings.HasPrefix(last, "-") && !slices.Contains(rest, "--"); {
	case pending != nil:
		list, err = o.values(ctx, flagValue(pending), last, pending.Value, p)
	case flagged:
		o.set.VisitAll(func(f *flag.Flag) {
			_, usage := flag.UnquoteUsage(f)
			what, _, _ := strings.Cut(usage, "\n")
			list = append(list, candidate{"-" + f.Name, what})
		})
	case argument(c.args, 0) == "COMMAND":
		return candidates(ctx, append(arguments, last), p)
	default:
		list, err = o.values(ctx, argument(c.args, len(arguments)), last, nil, p)
	}
	return beginning(last, list), err
}

// beginning returns the candidates that begin with a word, cleaned so that each
// is a line.
func beginning(word string, list []candidate) []candidate {
	var some []candidate
	for _, c := range list {
		if strings.HasPrefix(c.word, word) && c.word == clean(c.word) {
			some = append(some, candidate{c.word, clean(c.what)})
		}
	}
	return some
}

// scan sets the flags among words as far as they are right, and returns the
// arguments, and the flag whose value the word behind them is, if it is one.
func (o *options) scan(words []string) (arguments []string, pending *flag.Flag) {
	for len(words) > 0 {
		word := words[0]
		words = words[1:]
		if word == "--" {
			return append(arguments, words...), nil
		}
		if len(word) < 2 || word[0] != '-' {
			arguments = append(arguments, word)
			continue
		}
		name, value, hasValue := strings.Cut(strings.TrimLeft(word, "-"), "=")
		f := o.set.Lookup(name)
		if f == nil {
			continue
		}
		if b, ok := f.Value.(interface{ IsBoolFlag() bool }); ok && b.IsBoolFlag() && !hasValue {
			continue
		}
		if !hasValue {
			if len(words) == 0 {
				return arguments, f
			}
			value, words = words[0], words[1:]
		}
		// One that is wrong is an error when the command is run.
		_ = o.set.Set(name, value)
	}
	return arguments, nil
}

// argument is what the n-th argument is, as a usage line has it: of "NAME FILE"
// the second is a FILE, of "KEY..." each is a KEY.
func argument(usage string, n int) string {
	names := strings.Fields(strings.NewReplacer("[", "", "]", "").Replace(usage))
	if len(names) == 0 {
		return ""
	}
	if n >= len(names) && !strings.HasSuffix(names[len(names)-1], "...") {
		return ""
	}
	return strings.TrimSuffix(names[min(n, len(names)-1)], "...")
}

// flagValue is what the value of a flag is, as argument has it.
func flagValue(f *flag.Flag) string {
	what, _ := flag.UnquoteUsage(f)
	switch {
	case f.Name == "destination":
		return "DESTINATION"
	case f.Name == "source":
		return "SOURCE"
	case what == "file", what == "folder":
		return "FILE"
	}
	return ""
}

// values lists what a value may be of which word is typed. The server is asked with
// the flags that were given; it has little time, for somebody waits at the keyboard.
func (o *options) values(ctx context.Context, what, word string, value flag.Value, p process) ([]candidate, error) {
	switch v := value.(type) {
	case *choiceValue:
		return choices(v.values), nil
	case *listValue:
		if v.of != nil {
			return choices(v.of), nil
		}
	}
	if what == "FILE" {
		return nil, errAnyFile
	}
	admin, token := o.set.Lookup("admin"), o.set.Lookup("admin-token")
	if admin == nil || token == nil {
		return nil, nil
	}
	// Without a server there is nothing to say, and no reason to complain.
	if o.fromEnvironment(p) != nil {
		return nil, nil
	}
	given, tokenGiven := admin.Value.String(), token.Value.String()
	f := adminFlags{admin: &given, token: &tokenGiven}
	c, err := f.client(p)
	if err != nil {
		return nil, nil
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var list []candidate
	// Of each there is a page: a shell would ask before it shows so many.
	switch what {
	case "DESTINATION", "DESTINATION|URL":
		page, _ := c.Destinations(ctx, api.DestinationFilter{Query: word}, maxListed, "")
		for _, d := range page.Destinations {
			list = append(list, candidate{d.ID, "destination, " + d.State})
		}
	case "SOURCE":
		page, _ := c.Sources(ctx, word, maxListed)
		for _, s := range page.Sources {
			list = append(list, candidate{s.Name, "source"})
		}
	case "NAME":
		page, _ := c.Audiences(ctx, api.AudienceFilter{Query: word}, maxListed)
		for _, a := range page.Audiences {
			list = append(list, candidate{a.Name, "audience of " + a.Destination})
		}
	case "KEY":
		for d, err := range c.Dead(ctx, api.DeadFilter{}) {
			if err != nil || len(list) == 100 {
				break
			}
			list = append(list, candidate{d.Key, d.Destination + ": " + cmp.Or(d.Reason, d.Type)})
		}
	}
	return list, nil
}

func choices(words []string) []candidate {
	list := make([]candidate, len(words))
	for i, w := range words {
		list[i].word = w
	}
	return list
}
