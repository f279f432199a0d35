package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Each run and each row has a unique name. With equal names, one row would overwrite the other.
func TestRowsHaveNames(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range runs {
		if seen["run "+r.name] {
			t.Errorf("two runs have the name %s, want unique names", r.name)
		}
		seen["run "+r.name] = true
		if strings.Contains(r.command(), "|") {
			t.Errorf("%s: the command has a |, which would end a cell of the table", r.name)
		}
		for _, v := range r.values {
			if seen[v.what] || strings.Contains(v.what, "|") {
				t.Errorf("row %q: want a unique name without a |", v.what)
			}
			seen[v.what] = true
		}
	}
}

func TestParse(t *testing.T) {
	got := parse(strings.NewReader("goos: linux\nBenchmarkPost/client=net/http-2 \t 10 \t 7.5 ns/op \t 0 allocs/op\nPASS\n"))
	want := map[string]float64{"Post/client=net/http ns/op": 7.5, "Post/client=net/http allocs/op": 0}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("parse (-want +got)\n%s", diff)
	}
}

func TestFormat(t *testing.T) {
	for n, want := range map[float64]string{0: "0", 0.236: "0.24", 7.1: "7.10", 24.71: "24.7", 683.4: "683", 1234567: "1,234,567", -4.2: "-4.20"} {
		if got := format(n); got != want {
			t.Errorf("format(%v) = %q, want %q", n, got, want)
		}
	}
}

// update replaces only the cells of its run and its release of Go, and keeps all others.
func TestUpdate(t *testing.T) {
	first, second := runs[0].values[0].what, runs[1].values[0].what
	text := []byte("before\n" + begin + end + "\nafter\n")
	for _, step := range []struct {
		toolchain string
		results   map[string]string
	}{
		{"go1.27.4", map[string]string{first: "1 x"}},
		{"go1.26.8", map[string]string{first: "2 x"}},
		{"go1.27.4", map[string]string{second: "3 x"}},
		{"go1.26.8", map[string]string{first: "4 x"}},
	} {
		var err error
		if text, err = update(text, step.toolchain, step.results); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{
		"before\n" + begin + "| What | go1.26.8 | go1.27.4 | Command |\n|---|---|---|---|\n",
		"| " + first + " | 4 x | 1 x | `" + runs[0].command() + "` |\n",
		"| " + second + " |  | 3 x | `" + runs[1].command() + "` |\n",
		end + "\nafter\n",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the file lacks %q:\n%s", want, text)
		}
	}
	if _, err := update([]byte("no table"), "go1.26.8", nil); err == nil {
		t.Error("update of a file without a table = nil error, want an error")
	}
}
