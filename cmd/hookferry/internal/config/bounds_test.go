package config

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// TestBounds wants texts on which the parser takes minutes, or gigabytes, to be
// refused before it has them, and those at the bound to reach it.
func TestBounds(t *testing.T) {
	const huge = 100_000
	nest := func(unit string, step, n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "%*s%s\n", i*step, "", unit)
		}
		return b.String()
	}
	for _, tt := range []struct {
		name  string
		make  func(n int) string
		most  int // n that passes
		huge  int
		where string // of the error with most+1
		text  string
	}{
		{"brackets", func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }, maxDepth, huge, "1:65", "nested"},
		{"brackets that do not end", func(n int) string { return strings.Repeat("[", n) }, maxDepth, huge, "1:65", "nested"},
		{"braces", func(n int) string { return strings.Repeat("{a: ", n) }, maxDepth, huge, "1:257", "nested"},
		{"dashes in a line", func(n int) string { return strings.Repeat("- ", n) + "a" }, maxDepth, huge, "1:129", "nested"},
		{"lists in lines", func(n int) string { return nest("-", 1, n) }, maxDepth, 2_000, "65:65", "nested"},
		{"mappings in lines", func(n int) string { return nest("a:", 1, n) }, maxDepth, 2_000, "65:65", "nested"},
		{"both in turn", func(n int) string { return nest("- a:", 4, (n+1)/2) }, maxDepth, 1_000, "33:129", "nested"},
		{"brackets in lines", func(n int) string { return nest("a:", 1, n-1) + strings.Repeat(" ", n) + "[b]" }, maxDepth, 2_000, "65:66", "nested"},
		{"keys in lines", func(n int) string { return strings.Repeat("a: b\n", n) }, maxKeys, huge, "1001:2", "keys"},
		{"keys in braces", func(n int) string { return "{" + strings.Repeat("a: b, ", n) + "}" }, maxKeys, huge, "1:6003", "keys"},
		{"keys without values", func(n int) string { return strings.Repeat("- a:\n", n) + "- b" }, maxMissing, huge, "1002:1", "lacks"},
		{"entries without values", func(n int) string { return strings.Repeat("-\n", n) + "- b" }, maxMissing, huge, "1002:1", "lacks"},
		{"values missing in braces", func(n int) string { return "[" + strings.Repeat("{a:},", n) + "]" }, maxMissing, huge, "1:5005", "lacks"},
		{"keys alone in braces", func(n int) string { return "[" + strings.Repeat("{a},", n) + "]" }, maxMissing, huge, "1:4004", "lacks"},
		{"question marks", func(n int) string { return strings.Repeat("- ? a\n", n) }, maxMissing, huge, "1001:3", "lacks"},
		{"empty lines", func(n int) string { return "a: |\n b\n" + strings.Repeat("\n", n) + " c\n" }, maxBlank, huge, "1003:1", "empty lines"},
		{"documents", func(n int) string { return strings.Repeat("---\na\n", n) }, maxDocuments, huge, "129:1", "more than one document"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := tokens([]byte(tt.make(tt.most))); err != nil {
				t.Errorf("with %d: %v", tt.most, err)
			}
			_, err := tokens([]byte(tt.make(tt.most + 1)))
			var over *excess
			if !errors.As(err, &over) {
				t.Fatalf("with %d: %v, want an *excess", tt.most+1, err)
			}
			if at := fmt.Sprintf("%d:%d", over.line, over.column); at != tt.where || !strings.Contains(over.text, tt.text) {
				t.Errorf("with %d: %s: %s, want %s and the word %q", tt.most+1, at, over.text, tt.where, tt.text)
			}
			_, err = Load(write(t, tt.make(tt.huge)), env(nil), nil)
			if err == nil || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("Load with %d: %v, want the word %q", tt.huge, err, tt.text)
			}
		})
	}
}

// TestBoundsOfLargeFiles takes as much as the limits of settings allow.
func TestBoundsOfLargeFiles(t *testing.T) {
	lines, braces := bytes.NewBufferString("destinations:\n"), bytes.NewBufferString("{destinations: [")
	for i := range MaxDestinations {
		fmt.Fprintf(lines, "- id: d%d\n  endpoints:\n  - url: http://a.example/%d\n    headers:\n      A: b\n\n  # a note\n  secret: s\n", i, i)
		fmt.Fprintf(braces, "{id: d%d, endpoints: [{url: \"http://a.example/%d\", headers: {}}]},", i, i)
	}
	lines.WriteString("sources: [{name: a, keys: [k]}]\n")
	braces.WriteString("], sources: [{name: a, keys: [k]}]}\n")
	for _, text := range []*bytes.Buffer{lines, braces} {
		s, err := Load(write(t, text.String()), env(nil), nil)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(s.Destinations); n != MaxDestinations {
			t.Errorf("%d destinations were read, want %d", n, MaxDestinations)
		}
	}
}
