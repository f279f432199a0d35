package analytics_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestGoCodeInReadmeIsInTheFileItNames checks that the lines of each block of Go code in the
// README are in the file that the comment above the block names.
func TestGoCodeInReadmeIsInTheFileItNames(t *testing.T) {
	readme := readText(t, "README.md")
	all := strings.Count(readme, "\n```go\n")
	blocks := regexp.MustCompile("(?s)<!-- (\\S+) -->\n```go\n(.*?)\n```").FindAllStringSubmatch(readme, -1)
	if len(blocks) == 0 || len(blocks) != all {
		t.Fatalf("%d of %d blocks of Go code have a comment that names their file", len(blocks), all)
	}
	for _, b := range blocks {
		file, block := b[1], strings.Split(b[2], "\n")
		if !contains(strings.Split(readText(t, filepath.FromSlash(file)), "\n"), block) {
			t.Errorf("%s does not hold these lines of the README:\n%s", file, b[2])
		}
	}
}

// TestRelativeLinksLeadToFiles checks that the relative links of the Markdown files in the top
// folder lead to existing files.
func TestRelativeLinksLeadToFiles(t *testing.T) {
	files, err := filepath.Glob("*.md")
	if err != nil || len(files) == 0 {
		t.Fatalf("Markdown files: %q, %v", files, err)
	}
	link := regexp.MustCompile(`\]\(([^)#]+)\)`)
	for _, file := range files {
		for _, m := range link.FindAllStringSubmatch(readText(t, file), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			if _, err := os.Stat(filepath.FromSlash(m[1])); err != nil {
				t.Errorf("%s: the link to %s leads nowhere: %v", file, m[1], err)
			}
		}
	}
}

// TestMarkdownLinesHaveAtMost100Characters checks lines of prose in Markdown.
// Lines of one word, such as a link, may be longer.
func TestMarkdownLinesHaveAtMost100Characters(t *testing.T) {
	n := 0
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() && (d.Name() == "node_modules" || d.Name() == ".git") {
			return fs.SkipDir
		}
		if err != nil || filepath.Ext(path) != ".md" {
			return err
		}
		n++
		code := false
		for i, line := range strings.Split(readText(t, path), "\n") {
			if strings.HasPrefix(strings.TrimSpace(line), "```") {
				code = !code
			}
			if !code && !strings.HasPrefix(line, "|") && utf8.RuneCountInString(line) > 100 && len(strings.Fields(line)) > 1 {
				t.Errorf("%s:%d has %d characters, want at most 100", path, i+1, utf8.RuneCountInString(line))
			}
		}
		return nil
	})
	if err != nil || n < 10 {
		t.Errorf("found %d Markdown files, error %v, want at least 10", n, err)
	}
}

// TestFilesNamedInDesignExist checks that each Go file which DESIGN.md names exists.
func TestFilesNamedInDesignExist(t *testing.T) {
	names := map[string]bool{}
	err := filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		names[filepath.Base(path)] = true
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile("`(?:[a-z/]+/)?([a-z_]+\\.go)`").FindAllStringSubmatch(readText(t, "DESIGN.md"), -1)
	if len(found) == 0 {
		t.Error("found no file name in DESIGN.md, so this test checks nothing")
	}
	for _, m := range found {
		if !names[m[1]] {
			t.Errorf("DESIGN.md names %s: there is no such file", m[1])
		}
	}
}

// contains reports whether the lines of block appear in lines, one after the other. All of
// them may be indented by the same tabs.
func contains(lines, block []string) bool {
	for i := range len(lines) - len(block) + 1 {
		indent := lines[i][:len(lines[i])-len(strings.TrimLeft(lines[i], "\t"))]
		match := true
		for j, want := range block {
			if want != "" {
				want = indent + want
			}
			if lines[i+j] != want {
				match = false
				break
			}
		}
		if match {
			return true
		}
	}
	return false
}

// readText reads a text file and converts its line ends to newlines.
func readText(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(b), "\r\n", "\n")
}
