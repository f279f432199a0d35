package main

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// TestCleanLeavesOnlyPrintableCharacters shows that foreign texts can neither move the
// cursor nor look like another text.
func TestCleanLeavesOnlyPrintableCharacters(t *testing.T) {
	texts := []string{"plain", `a "quoted" one`, "\x1b[2J", "\u202e", "a\nb\r\tc", "\xff\xfe", "日本語", "back\\slash"}
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		b := make([]byte, random.IntN(20))
		for i := range b {
			b[i] = byte(random.IntN(256))
		}
		texts = append(texts, string(b), string(rune(random.IntN(unicode.MaxRune))))
	}
	for _, text := range texts {
		for _, r := range clean(text) {
			if !unicode.IsPrint(r) {
				t.Errorf("clean(%q) has the character %q, want only printable ones", text, r)
			}
		}
		for _, r := range cleanLines(text) {
			if r != '\n' && !unicode.IsPrint(r) {
				t.Errorf("cleanLines(%q) has the character %q, want only printable ones and line feeds", text, r)
			}
		}
		var out strings.Builder
		if err := printJSON(&out, text); err != nil {
			t.Fatal(err)
		}
		for _, r := range strings.TrimSuffix(out.String(), "\n") {
			if !unicode.IsPrint(r) {
				t.Errorf("printJSON(%q) prints the character %q, want only printable ones", text, r)
			}
		}
		var back string
		if err := json.Unmarshal([]byte(out.String()), &back); err != nil || utf8.ValidString(text) && back != text {
			t.Errorf("printJSON(%q) prints %q, which decodes to %q, %v; want the text itself", text, out.String(), back, err)
		}
	}
}

func TestCleanKeepsPrintableTexts(t *testing.T) {
	for _, text := range []string{"", "a b", `"quoted"`, `C:\folder`, "日本語", "café"} {
		if got := clean(text); got != text {
			t.Errorf("clean(%q) = %q, want the text unchanged", text, got)
		}
	}
}

func TestRedrawFitsTheScreen(t *testing.T) {
	for _, tt := range []struct {
		name   string
		height int
		want   string
	}{
		{"the text fits", 5, "\x1b[Ha\x1b[K\nb\x1b[K\nc\x1b[K\nd\x1b[K\n\x1b[J"},
		{"the text is too high", 4, "\x1b[Ha\x1b[K\nb\x1b[K\nand 2 more lines\x1b[K\n\x1b[J"},
	} {
		if got := redraw(screen{height: tt.height}, "a\nb\nc\nd\n"); got != tt.want {
			t.Errorf("%s: redraw returns %q, want %q", tt.name, got, tt.want)
		}
	}
}
