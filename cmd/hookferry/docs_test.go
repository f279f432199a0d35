package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// eachCommand calls do for each command that does something, with its words.
func eachCommand(list []command, words []string, do func(words []string, c command)) {
	for _, c := range list {
		path := append(slices.Clone(words), c.name)
		if c.define != nil {
			do(path, c)
		}
		eachCommand(c.commands, path, do)
	}
}

// called are the commands of the lines of a text that call hookferry, with
// their flags checked. What the command itself would find wrong is not seen.
func called(t *testing.T, text string) []string {
	t.Helper()
	var names []string
	for _, line := range regexp.MustCompile(`(?m)(?:^|<\()\s*((?:[A-Z_]+=\S+ )?hookferry (?:[^\n]*\\\n)*[^\n]*)`).FindAllStringSubmatch(text, -1) {
		call := strings.ReplaceAll(line[1], "\\\n", " ")
		call, _, _ = strings.Cut(call, " #")
		call = strings.TrimSpace(call)
		call = regexp.MustCompile(` [<>|] .*|\)$`).ReplaceAllString(call, "")
		var words []string
		for _, w := range regexp.MustCompile(`(?:"[^"]*"|'[^']*'|\S)+`).FindAllString(call, -1) {
			words = append(words, strings.NewReplacer(`"`, "", `'`, "").Replace(w))
		}
		words = words[slices.Index(words, "hookferry")+1:]
		c, name, args, err := findCommand(words)
		if err != nil || c.define == nil {
			t.Errorf("%q: %s is no command, %v", call, name, err)
			continue
		}
		o := newOptions(name, c.help)
		c.define(o)
		rest, err := o.parse(args, process{getenv: func(string) string { return "" }})
		if err != nil || len(rest) > 0 && c.args == "" {
			t.Errorf("%q is called wrongly: %v, arguments %q", call, err, rest)
		}
		names = append(names, strings.TrimPrefix(name, "hookferry "))
	}
	return names
}

// docs/cli.md has an example of every command, and none of what there is not.
func TestDocumentationHasEveryCommand(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "cli.md"))
	if err != nil {
		t.Fatal(err)
	}
	var shell strings.Builder
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllSubmatch(text, -1) {
		shell.Write(block[1])
	}
	names := called(t, shell.String())
	eachCommand(commands(), nil, func(words []string, _ command) {
		if name := strings.Join(words, " "); !slices.Contains(names, name) {
			t.Errorf("docs/cli.md has no example of %q", name)
		}
	})
	for _, status := range []string{"| 0 | done |", "| 1 | failed", "| 2 | called wrongly", "| 3 | what was asked for is not there"} {
		if !strings.Contains(string(text), status) {
			t.Errorf("docs/cli.md does not say %q", status)
		}
	}
}

// The help of every command begins with how it is called, and its examples are
// right.
func TestHelpOfEveryCommand(t *testing.T) {
	eachCommand(commands(), nil, func(words []string, c command) {
		if !strings.HasPrefix(c.help, "Usage: hookferry "+words[0]) {
			t.Errorf("the help of %q does not begin with its usage:\n%s", words, c.help)
		}
		_, examples, _ := strings.Cut(c.help, "Examples:\n")
		called(t, examples)
		if c.summary == "" {
			t.Errorf("%q has no summary", words)
		}
	})
}

// Help is read on terminals of 80 columns too.
func TestHelpFitsTheTerminal(t *testing.T) {
	helps := map[string]string{}
	var add func(list []command, words string)
	add = func(list []command, words string) {
		for _, c := range list {
			var b strings.Builder
			o := newOptions("", c.help)
			if c.define != nil {
				c.define(o)
			}
			o.writeHelp(&b)
			helps[words+c.name] = b.String()
			add(c.commands, words+c.name+" ")
		}
	}
	add(commands(), "")
	var b strings.Builder
	writeHelp(&b)
	helps["help"] = b.String()
	for words, help := range helps {
		for line := range strings.Lines(help) {
			if n := columns(strings.TrimSuffix(line, "\n")); n > helpWidth {
				t.Errorf("the help of %q has a line of %d columns: %s", words, n, line)
			}
		}
	}
}

// The Dockerfile downloads modules before it has all of the source: go then reads
// the go.mod of each module of the workspace.
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
