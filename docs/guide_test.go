// Package docs_test checks that the code in the guides of this folder compiles and runs.
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

// show prints the calls that the server accepted.
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

// TestGoCodeInGuidesIsInTheFileItNames checks that the lines of each block of Go code in the guides
// are in the file that the comment above the block names. Indentation may differ.
func TestGoCodeInGuidesIsInTheFileItNames(t *testing.T) {
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

// outdented returns the lines of text without the white space around them. Within a line, it
// reduces white space to one space.
func outdented(text string) string {
	var b strings.Builder
	b.WriteByte('\n')
	for line := range strings.Lines(text) {
		b.WriteString(strings.Join(strings.Fields(line), " "))
		b.WriteByte('\n')
	}
	return b.String()
}

// TestExamplesPrintTheSameAsWithV3 compares the output of the examples in v3_test.go with that of
// the examples of the same name in interop/go/v3/before. These use v3 itself, and are in another module.
func TestExamplesPrintTheSameAsWithV3(t *testing.T) {
	before := outputs(t, filepath.FromSlash("../interop/go/v3/before/v3_test.go"))
	after := outputs(t, "v3_test.go")
	if len(before) == 0 {
		t.Fatal("found no examples in interop/go/v3/before, so this test checks nothing")
	}
	for name, want := range before {
		if got := after[name]; got != want {
			t.Errorf("Example%s prints\n%swant, as with v3,\n%s", name, got, want)
		}
	}
}

// outputs returns the expected output of each example in a file, by the name of the example.
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

// runners are the tests that compile or run the blocks of each language. Each names its pages.
var runners = map[string]string{
	"sh":   "../cmd/hookferry/guide_commands_test.go",
	"yaml": "../cmd/hookferry/internal/config/guide_test.go",
	"go":   "guide_test.go", // those of all pages
	"js":   "receivers_linux_test.go", "python": "receivers_linux_test.go", "ruby": "receivers_linux_test.go", "php": "receivers_linux_test.go",
	"sql":  "receivers_test.go",
	"diff": "guide_test.go", "json": "guide_test.go",
}

// TestEachBlockIsRun checks that each block of code in the guides is compiled or run by a test: the one
// in a comment above it, or the one for its language, which names the page. Blocks of text show what a
// program prints.
func TestEachBlockIsRun(t *testing.T) {
	guides, err := filepath.Glob("*.md")
	if err != nil || len(guides) == 0 {
		t.Fatalf("guides: %q, %v", guides, err)
	}
	for _, guide := range guides {
		for _, m := range regexp.MustCompile("(?s)([^\n]*)\n```(\\w*)\n(.*?)\n```\n").FindAllStringSubmatch(readText(t, guide), -1) {
			above, language, block := m[1], m[2], m[3]
			runner := runners[language]
			if language == "text" {
				continue
			}
			if module, ok := strings.CutPrefix(block, "go get github.com/hookferry/analytics/"); ok {
				if !strings.Contains(readText(t, "../.ci/start"), " /"+module+" ") {
					t.Errorf("%s: .ci/start does not use the module %s", guide, module)
				}
				continue
			}
			if name, ok := strings.CutSuffix(above, " runs this -->"); ok {
				runner = "../" + strings.TrimPrefix(name, "<!-- ")
			} else if language == "json" && !json.Valid([]byte(block)) {
				t.Errorf("%s: a block of JSON is not valid:\n%s", guide, block)
			}
			if runner == "" {
				t.Errorf("%s: nothing runs a block of %q:\n%s", guide, language, block)
			} else if text := readText(t, runner); runner != "guide_test.go" && runner != "../.ci/start" && !strings.Contains(text, guide) {
				t.Errorf("%s: a block of %s is not run by %s, which does not name the page", guide, language, runner)
			}
		}
	}
}

// TestImportsInDiffsAreThose checks that each change of an import in docs/migrating.md is that of a
// program before and after it.
func TestImportsInDiffsAreThose(t *testing.T) {
	blocks := regexp.MustCompile("```diff\n-import (\\S+)\n\\+import (\\S+)\n```\n").FindAllStringSubmatch(readText(t, "migrating.md"), -1)
	programs := [][2]string{ // of each block
		{"", "v2_test.go"}, // the version before Go modules; see the package that stands for it
		{"../interop/go/v3/before/v3_test.go", "../analyticsv3/client_test.go"},
		{"../interop/go/v3/before/v3_test.go", "v3_test.go"},
	}
	if len(blocks) != len(programs) {
		t.Fatalf("found %d changes of imports, want %d", len(blocks), len(programs))
	}
	for i, files := range programs {
		for j, file := range files {
			if file != "" && !strings.Contains(readText(t, file), blocks[i][1+j]) {
				t.Errorf("%s does not import %s", file, blocks[i][1+j])
			}
		}
	}
}

// TestRelativeLinksLeadToFiles checks that the relative links of the guides lead to existing files.
func TestRelativeLinksLeadToFiles(t *testing.T) {
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

// readText reads a text file and converts its line ends to newlines.
func readText(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.FromSlash(name))
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(b), "\r\n", "\n")
}
