// Package docs_test holds the guides in this folder to code that compiles and
// runs.
package docs_test

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hookferry/analytics/analyticstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// show prints the calls that arrived.
func show(srv *analyticstest.Server) {
	for _, c := range srv.Calls() {
		line := []string{c.Type, c.UserId, c.AnonymousId, c.PreviousId, c.GroupId, c.Event, c.Name}
		for _, m := range []map[string]any{c.Properties, c.Traits, c.Integrations, c.Context} {
			if len(m) > 0 {
				text, err := json.Marshal(m)
				check(err)
				line = append(line, string(text))
			}
		}
		if c.MessageId == "order-1" {
			line = append(line, c.Timestamp.Format(time.RFC3339Nano))
		}
		fmt.Println(strings.Join(strings.Fields(strings.Join(line, " ")), " "))
	}
}

// TestGuideCode holds each block of code to the file that the comment above it
// names: the block stands there line by line, but for indentation.
func TestGuideCode(t *testing.T) {
	guides, err := filepath.Glob("*.md")
	if err != nil || len(guides) == 0 {
		t.Fatalf("guides: %q, %v", guides, err)
	}
	found := 0
	for _, guide := range guides {
		text := readText(t, guide)
		all := strings.Count(text, "\n```go\n")
		blocks := regexp.MustCompile("(?s)<!-- (\\S+) -->\n```go\n(.*?)\n```").FindAllStringSubmatch(text, -1)
		found += len(blocks)
		if len(blocks) != all {
			t.Errorf("%s: %d of %d blocks of code have a comment that names their file", guide, len(blocks), all)
		}
		for _, b := range blocks {
			if !strings.Contains(outdented(readText(t, b[1])), outdented(b[2])) {
				t.Errorf("%s: %s does not hold these lines:\n%s", guide, b[1], b[2])
			}
		}
	}
	if found == 0 {
		t.Error("no guide has a block of Go code")
	}
}

// outdented returns the lines of text without the blanks before and after
// them, and without the padding within.
func outdented(text string) string {
	var b strings.Builder
	b.WriteByte('\n')
	for line := range strings.Lines(text) {
		b.WriteString(strings.Join(strings.Fields(line), " "))
		b.WriteByte('\n')
	}
	return b.String()
}

// TestSameCallsAsBefore holds the examples of v3 to the output of those of the
// same name with v3 itself, which run in the module that has it.
func TestSameCallsAsBefore(t *testing.T) {
	before := outputs(t, filepath.FromSlash("../bench/before/v3_test.go"))
	after := outputs(t, "v3_test.go")
	if len(before) == 0 {
		t.Fatal("no examples of the code before")
	}
	for name, want := range before {
		if got := after[name]; got != want {
			t.Errorf("Example%s prints\n%swhich was, before,\n%s", name, got, want)
		}
	}
}

// outputs returns what the examples in a file print, by name.
func outputs(t *testing.T, file string) map[string]string {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, e := range doc.Examples([]*ast.File{f}...) {
		found[e.Name] = e.Output
	}
	return found
}

// TestGuideLinks holds links to files that are there.
func TestGuideLinks(t *testing.T) {
	guides, err := filepath.Glob("*.md")
	if err != nil || len(guides) == 0 {
		t.Fatalf("guides: %q, %v", guides, err)
	}
	for _, guide := range guides {
		for _, m := range regexp.MustCompile(`\]\(([^)#]+)\)`).FindAllStringSubmatch(readText(t, guide), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			if _, err := os.Stat(filepath.FromSlash(m[1])); err != nil {
				t.Errorf("%s: the link to %s leads nowhere: %v", guide, m[1], err)
			}
		}
	}
}

// readText reads a text file, whose lines end in a newline on every system.
func readText(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.FromSlash(name))
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(b), "\r\n", "\n")
}
