package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Each soak has a unique name, and the tests, benchmarks, fuzz targets or programs that it runs
// exist.
func TestSoaksAreThere(t *testing.T) {
	names := map[string]bool{"all": true, "list": true}
	for _, s := range soaks {
		if names[s.name] {
			t.Errorf("two soaks have the name %s, want unique names", s.name)
		}
		names[s.name] = true
		if s.name == "" || s.what == "" || s.test+s.bench+s.fuzz == "" && len(s.program) == 0 {
			t.Errorf("soak %+v: want a name, a text that says what it shows, and something to run", s)
		}
		dir := filepath.Join("..", s.dir)
		if len(s.program) > 0 {
			if _, err := os.Stat(filepath.Join(dir, s.program[0])); err != nil {
				t.Errorf("%s: %v", s.name, err)
			}
			continue
		}
		files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
		if err != nil || len(files) == 0 {
			t.Errorf("%s: got no test files in %s, %v", s.name, s.dir, err)
		}
		var text strings.Builder
		for _, file := range files {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			text.Write(b)
		}
		for _, pattern := range []string{s.test, s.bench, s.fuzz} {
			for name := range strings.SplitSeq(pattern, "|") {
				name, _, _ = strings.Cut(strings.Trim(name, "^$()"), "/")
				name = strings.TrimRight(name, "$")
				if name != "" && !strings.Contains(text.String(), "\nfunc "+name+"(") {
					t.Errorf("%s: got no function %s in %s", s.name, name, s.dir)
				}
			}
		}
	}
}

// The soaks that the docs run are there. N stands for any number.
func TestSoaksInDocsAreThere(t *testing.T) {
	pages, err := filepath.Glob("../*.md")
	guides, gerr := filepath.Glob("../docs/*.md")
	if err != nil || gerr != nil {
		t.Fatal(err, gerr)
	}
	found := 0
	for _, page := range append(pages, guides...) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile("go run ./soak ([^`#\n]*)").FindAllSubmatch(text, -1) {
			found++
			_, names, err := parse(strings.Fields(strings.ReplaceAll(string(m[1]), " N", " 1")))
			if err == nil && !slices.Equal(names, []string{"list"}) {
				_, err = choose(names)
			}
			if err != nil || len(names) == 0 {
				t.Errorf("%s: %s: %q, %v", page, m[0], names, err)
			}
		}
	}
	if found < 10 {
		t.Errorf("the docs run %d soaks, want at least 10", found)
	}
}
