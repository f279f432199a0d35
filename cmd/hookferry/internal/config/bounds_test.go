package config

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

// TestLoadRefusesHostileFiles reads texts that are hard on parsers. Load refuses each of them, in a
// time that grows linearly with the length.
func TestLoadRefusesHostileFiles(t *testing.T) {
	const size = MaxFile / 8
	nest := func(unit string, step, n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "%*s%s\n", i*step, "", unit)
		}
		return b.String()
	}
	for name, text := range map[string]string{
		"brackets":                   strings.Repeat("[", size/2) + strings.Repeat("]", size/2),
		"brackets that do not end":   strings.Repeat("[", size),
		"braces":                     strings.Repeat("{a: ", size/4),
		"dashes in a line":           strings.Repeat("- ", size/2-1) + "a",
		"lists in lines":             nest("-", 1, 1_000),
		"mappings in lines":          nest("a:", 1, 1_000),
		"keys in lines":              strings.Repeat("a: b\n", size/5),
		"keys in braces":             "{" + strings.Repeat("a: b, ", size/6-1) + "}",
		"keys without values":        strings.Repeat("- a:\n", size/5-1) + "- b",
		"values missing in braces":   "[" + strings.Repeat("{a:},", size/5-1) + "]",
		"question marks":             strings.Repeat("- ? a\n", size/6),
		"empty lines":                "a: |\n b\n" + strings.Repeat("\n", size-20) + " c\n",
		"comments":                   "a: b\n" + strings.Repeat("#\n", size/2-5),
		"comments behind values":     strings.Repeat("a: b # c\n", size/9),
		"documents":                  strings.Repeat("---\na\n", size/6),
		"anchors":                    "a: " + strings.Repeat("&a ", size/3-2),
		"aliases of aliases":         "a: &a [b]\n" + strings.Repeat("c: &a [*a,*a]\n", size/14-1),
		"an alias of its own list":   "sources: &a [*a, {name: *a, keys: *a, destinations: *a}]\n",
		"quotes that do not end":     "a: '" + strings.Repeat("b ", size/2-3),
		"a text of lines":            "a: " + strings.Repeat("b\n  ", size/4-1),
		"a key that is long":         strings.Repeat("a", size-2) + ":",
		"percent signs, a directive": strings.Repeat("%A b\n", size/5),
	} {
		t.Run(name, func(t *testing.T) {
			if len(text) > size {
				t.Fatalf("the text has %d bytes, want at most %d", len(text), size)
			}
			if _, err := Load(write(t, text), env(nil), nil); err == nil {
				t.Error("Load returned no error")
			}
		})
	}
}

// TestLoadReadsTheMostDestinations reads files with as many destinations as the limit allows.
func TestLoadReadsTheMostDestinations(t *testing.T) {
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
			t.Errorf("Load read %d destinations, want %d", n, MaxDestinations)
		}
	}
}
