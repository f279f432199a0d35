package main

import (
	"flag"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/internal/soak"
)

// go test ./soak/scaling -update -soak.for 1s writes all tables.
var update = flag.Bool("update", false, "write the tables to docs/scaling.md")

var guide = filepath.Join("..", "..", "docs", "scaling.md")

// TestGuide compares the tables of docs/scaling.md with what the program prints.
func TestGuide(t *testing.T) {
	for name, table := range tables() {
		holds(t, name, table)
	}
}

// TestGuideOfAHundredBillion is TestGuide for the table that takes longest to compute.
func TestGuideOfAHundredBillion(t *testing.T) {
	soak.Only(t, "scaling")
	holds(t, "hundred billion", largeTable())
}

// holds checks that the table with a name in the guide is equal to want. With -update it writes the
// table. A comment above the table has the name.
func holds(t *testing.T, name, want string) {
	t.Helper()
	text, err := os.ReadFile(guide)
	if err != nil {
		t.Fatal(err)
	}
	page := strings.ReplaceAll(string(text), "\r\n", "\n")
	_, rest, found := strings.Cut(page, "<!-- scaling: "+name+" -->\n")
	if !found {
		t.Fatalf("%s has no table %q", guide, name)
	}
	got, after, _ := strings.Cut(rest, "\n\n")
	if *update {
		page = strings.TrimSuffix(page, rest) + want + "\n" + after
		if err := os.WriteFile(guide, []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if runtime.GOARCH != "amd64" {
		// Other processors fuse a multiplication and an addition, and round only once. That changes
		// the last digits. On them the test compares only the text between the numbers.
		got, want = strings.Map(noDigit, got), strings.Map(noDigit, want)
	}
	if d := cmp.Diff(strings.Split(strings.TrimSpace(got), "\n"), strings.Split(strings.TrimSpace(want), "\n")); d != "" {
		t.Errorf("%s: table %q (-page +program; -update writes it):\n%s", guide, name, d)
	}
}

// noDigit drops the characters of numbers.
func noDigit(r rune) rune {
	if strings.ContainsRune("0123456789,.", r) {
		return -1
	}
	return r
}
