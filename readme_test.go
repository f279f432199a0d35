package analytics_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestReadmeCode holds the Go code of the README to the file that the comment
// above each block names: the block stands there line by line.
func TestReadmeCode(t *testing.T) {
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

// TestReadmeLinks holds the links of the Markdown files to files that are
// there.
func TestReadmeLinks(t *testing.T) {
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

// TestDesignFiles holds the names of files in DESIGN.md to files that are there.
func TestDesignFiles(t *testing.T) {
	design := readText(t, "DESIGN.md")
	folder := "." // of the table or the paragraph
	n := 0
	for line := range strings.Lines(design) {
		if m := regexp.MustCompile("^\\| (Root|`[a-z/]+`) \\| \\|$").FindStringSubmatch(strings.TrimSpace(line)); m != nil {
			folder = strings.Trim(m[1], "`")
			if folder == "Root" {
				folder = "."
			}
			continue
		}
		if !strings.HasPrefix(line, "|") {
			continue
		}
		for _, m := range regexp.MustCompile("`([a-z_]+\\.go)`").FindAllStringSubmatch(line, -1) {
			n++
			if _, err := os.Stat(filepath.Join(filepath.FromSlash(folder), m[1])); err != nil {
				t.Errorf("DESIGN.md: %v", err)
			}
		}
	}
	if n < 50 {
		t.Errorf("DESIGN.md names %d files: the map was not found", n)
	}
}

// contains reports whether block stands in lines, where it may be indented by
// the same tabs throughout.
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

// readText reads a text file, whose lines end in a newline on every system.
func readText(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(b), "\r\n", "\n")
}
