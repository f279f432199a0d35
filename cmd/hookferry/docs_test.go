package main

import (
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/hookferry/analytics/webhook/store"
)

// noEnvironment is a process without environment variables.
var noEnvironment = process{getenv: func(string) string { return "" }, stdin: strings.NewReader(""), stdout: io.Discard, stderr: io.Discard}

// eachCommand calls do for c and all commands below it, except the commands that cobra adds.
func eachCommand(c *cobra.Command, do func(words string, c *cobra.Command)) {
	words := strings.TrimSpace(strings.TrimPrefix(c.CommandPath(), "hookferry"))
	if words != "completion" && words != "help" {
		do(words, c)
		for _, below := range c.Commands() {
			eachCommand(below, do)
		}
	}
}

// commandsIn returns the names of the hookferry commands that a text calls. It checks that
// each command exists and has the flags that the text gives it. It runs none of them.
func commandsIn(t *testing.T, text string) []string {
	t.Helper()
	var names []string
	for _, line := range regexp.MustCompile(`(?m)(?:^|<\()\s*((?:[A-Z_]+=\S+ )?hookferry (?:[^\n]*\\\n)*[^\n]*)`).FindAllStringSubmatch(text, -1) {
		call := strings.ReplaceAll(line[1], "\\\n", " ")
		call, _, _ = strings.Cut(call, " #")
		call = strings.TrimSpace(call)
		call = regexp.MustCompile(` [<>|&].*|\)$`).ReplaceAllString(call, "")
		var words []string
		for _, w := range regexp.MustCompile(`(?:"[^"]*"|'[^']*'|\S)+`).FindAllString(call, -1) {
			words = append(words, strings.NewReplacer(`"`, "", `'`, "").Replace(w))
		}
		words = words[slices.Index(words, "hookferry")+1:]
		c, args, err := noEnvironment.commands().Find(words)
		if err != nil || c.HasSubCommands() {
			t.Errorf("%q: %s is not a command that can be run: %v", call, c.CommandPath(), err)
			continue
		}
		err = c.ParseFlags(args)
		if err != nil || c.Flags().NArg() > 0 && !strings.Contains(c.Use, " ") {
			t.Errorf("%q does not parse: %v, arguments %q", call, err, c.Flags().Args())
		}
		names = append(names, strings.TrimPrefix(c.CommandPath(), "hookferry "))
	}
	return names
}

// TestDocumentationHasEveryCommand shows that docs/cli.md has an example of every command,
// and of no command that does not exist.
func TestDocumentationHasEveryCommand(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "cli.md"))
	if err != nil {
		t.Fatal(err)
	}
	var shell strings.Builder
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllSubmatch(text, -1) {
		shell.Write(block[1])
	}
	names := commandsIn(t, shell.String())
	eachCommand(noEnvironment.commands(), func(words string, c *cobra.Command) {
		if !c.HasSubCommands() && !slices.Contains(names, words) {
			t.Errorf("docs/cli.md has no example of %q", words)
		}
	})
	for _, words := range []string{"completion bash", "help"} {
		if !slices.Contains(names, words) {
			t.Errorf("docs/cli.md has no example of %q", words)
		}
	}
	for _, status := range []string{"| 0 | done |", "| 1 | failed", "| 2 | called wrongly", "| 3 | what was asked for is not there"} {
		if !strings.Contains(string(text), status) {
			t.Errorf("docs/cli.md does not say %q", status)
		}
	}
}

// TestCommandsInGuidesExist shows that the commands in all guides exist, and have the flags
// that the guides give them.
func TestCommandsInGuidesExist(t *testing.T) {
	guides, err := filepath.Glob(filepath.Join("..", "..", "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, file := range guides {
		for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(guide(t, filepath.Base(file)), -1) {
			n += len(commandsIn(t, block[1]))
		}
	}
	if n < 40 {
		t.Errorf("found %d commands in the guides, want at least 40", n)
	}
}

// TestTroubleshootingHasEveryReason shows that docs/troubleshooting.md explains each reason
// and each hold.
func TestTroubleshootingHasEveryReason(t *testing.T) {
	text := guide(t, "troubleshooting.md")
	n := 0
	for _, m := range regexp.MustCompile(`(?m)^\t(?:Reason|Hold)\w+ +(?:Reason|HoldKind) = "(\w+)"(?: +//.*)?$`).FindAllStringSubmatch(
		guide(t, "../webhook/store/reason.go")+guide(t, "../webhook/hold.go"), -1) {
		if n++; !strings.Contains(text, "\n| `"+m[1]+"` | ") {
			t.Errorf("docs/troubleshooting.md does not explain %s", m[1])
		}
	}
	if n < 18 {
		t.Errorf("found %d reasons and holds, want at least 18", n)
	}
}

// TestEachListOfReasonsAndStatesIsWhole shows that the documents for other languages, the words of the
// pages and docs/metrics.md have all reasons of failures, and all states of deliveries.
func TestEachListOfReasonsAndStatesIsWhole(t *testing.T) {
	for _, f := range []struct {
		file, list, item string
		want             int // so many lists
	}{
		{"internal/admin/openapi.json", `"enum": \[([^\]]*"(?:claimed|throttled)"[^\]]*)\]`, `"(\w+)"`, 6},
		{"internal/admin/openapi.json", `(timeout, dns.*?)\."`, `(\w+)`, 6},
		{"../../webhook/portal/openapi.json", `"enum": \[([^\]]*"(?:claimed|throttled)"[^\]]*)\]`, `"(\w+)"`, 10},
		{"../../internal/ui/kit/words.js", `(?s)const (?:reasons|states) = \{(.*?)\n\}`, `(?m)^  (\w+):`, 2},
		{"../../docs/metrics.md", "(?s)\n- `reason` is (.*?)\\[", "`(\\w+)`", 1},
	} {
		text, err := os.ReadFile(filepath.FromSlash(f.file))
		if err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(f.list).FindAllStringSubmatch(string(text), -1)
		if len(found) < f.want {
			t.Errorf("%s: found %d lists, want at least %d", f.file, len(found), f.want)
		}
		for _, m := range found {
			var got []string
			for _, item := range regexp.MustCompile(f.item).FindAllStringSubmatch(m[1], -1) {
				got = append(got, item[1])
			}
			want := texts(store.Reasons())
			if slices.Contains(got, "dead") {
				want = texts(store.States())
			}
			slices.Sort(got)
			slices.Sort(want)
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("%s: a list differs (-want +got):\n%s", f.file, d)
			}
		}
	}
}

// TestEveryActionHasHelp shows that every action has a section of help.txt. A section without
// an action belongs to a command that only groups others.
func TestEveryActionHasHelp(t *testing.T) {
	leaves := map[string]bool{}
	eachCommand(noEnvironment.commands(), func(words string, c *cobra.Command) {
		if !c.HasSubCommands() {
			leaves[words] = true
		}
	})
	for words := range actions {
		if !leaves[words] {
			t.Errorf("help.txt has no section of %q", words)
		}
		delete(leaves, words)
	}
	if len(leaves) > 0 {
		t.Errorf("sections of help.txt without an action: %v", leaves)
	}
}

// TestHelpOfEveryCommand shows that the help of every command begins with its usage, fits
// into 80 columns, and has examples that parse.
func TestHelpOfEveryCommand(t *testing.T) {
	eachCommand(noEnvironment.commands(), func(words string, c *cobra.Command) {
		var b strings.Builder
		c.SetOut(&b)
		c.InitDefaultHelpFlag()
		if err := c.Help(); err != nil {
			t.Error(err)
		}
		if want := "Usage: " + strings.TrimSpace("hookferry "+words); !strings.HasPrefix(b.String(), want) {
			t.Errorf("the help of %q does not begin with its usage:\n%s", words, b.String())
		}
		_, examples, _ := strings.Cut(c.Long, "Examples:\n")
		commandsIn(t, examples)
		if c.Short == "" && words != "" {
			t.Errorf("%q has no summary", words)
		}
		for line := range strings.Lines(b.String()) {
			if n := columns(strings.TrimSuffix(line, "\n")); n > 80 {
				t.Errorf("the help of %q has a line of %d columns: %s", words, n, line)
			}
		}
	})
}

// TestDockerfileCopiesEachModuleOfTheWorkspace: the Dockerfile downloads modules before it
// copies the rest of the source. For that, go reads the go.mod of each module of the workspace.
func TestDockerfileCopiesEachModuleOfTheWorkspace(t *testing.T) {
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join("..", "..", name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	dockerfile := read("Dockerfile")
	modules := regexp.MustCompile(`(?m)^\t\./(\S+)$`).FindAllStringSubmatch(read("go.work"), -1)
	if len(modules) == 0 {
		t.Fatal("no module found in go.work")
	}
	for _, m := range modules {
		dir, sum := m[1], ""
		if _, err := os.Stat(filepath.Join("..", "..", dir, "go.sum")); err == nil {
			sum = dir + "/go.sum "
		}
		if want := "COPY " + dir + "/go.mod " + sum + dir + "/\n"; !strings.Contains(dockerfile, want) {
			t.Errorf("Dockerfile lacks %q", want)
		}
	}
}
