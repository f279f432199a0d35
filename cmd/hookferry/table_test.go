package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTableFits(t *testing.T) {
	texts := table{columns: []column{{title: "A", flexible: true}, {title: "B", right: true}, {title: "C", spare: 1}, {title: "D", spare: 2}}}
	texts.add(cell{"a long text of some words", normal}, cell{"1", normal}, cell{"cc", normal}, cell{"d", normal})
	texts.add(cell{"short", normal}, cell{"1,000", bad}, cell{"c", normal}, cell{"dddd", normal})
	texts.note("a note that is rather long")
	for _, tt := range []struct {
		name  string
		width int
		want  string
	}{
		{"no limit", 0, `
A                              B  C   D
a long text of some words      1  cc  d
short                      1,000  c   dddd
  a note that is rather long
`},
		{"the flexible column is cut", 36, `
A                        B  C   D
a long text of som…      1  cc  d
short                1,000  c   dddd
  a note that is rather long
`},
		{"spare columns are left out", 24, `
A                  B  C
a long text …      1  cc
short          1,000  c
  a note that is rather…
`},
		{"all spare columns are left out", 10, `
A        B
a …      1
sh…  1,000
  a note …
`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out strings.Builder
			out.WriteByte('\n')
			texts.print(screen{Writer: &out, width: tt.width})
			if diff := cmp.Diff(tt.want, out.String()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestTableAlignsWideTexts shows that a table aligns texts by their columns on the terminal,
// not by their number of characters.
func TestTableAlignsWideTexts(t *testing.T) {
	texts := table{columns: []column{{title: "A", flexible: true}, {title: "B", right: true}, {title: "C"}}}
	texts.add(cell{"日本語のお客様", normal}, cell{"1", normal}, cell{"x", normal})
	texts.add(cell{"cafe\u0301 🚀", normal}, cell{"二", normal}, cell{"x", normal})
	texts.add(cell{"plain", normal}, cell{"1,000", normal}, cell{"x", normal})
	texts.note("顧客の受信者が応答しません")
	for width, want := range map[int]string{ // some lines would end in the middle of a character
		0: `
A                   B  C
日本語のお客様      1  x
café 🚀            二  x
plain           1,000  x
  顧客の受信者が応答しません
`,
		23: `
A                  B  C
日本語のお客…      1  x
café 🚀           二  x
plain          1,000  x
  顧客の受信者が応答し…
`,
	} {
		var out strings.Builder
		out.WriteByte('\n')
		texts.print(screen{Writer: &out, width: width})
		want = strings.ReplaceAll(want, `\u0301`, "\u0301")
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("in %d columns (-want +got):\n%s", width, diff)
		}
	}
}

func TestTableColours(t *testing.T) {
	texts := table{columns: []column{{title: "A"}, {title: "B"}}}
	texts.add(cell{"a", good}, cell{"b", normal})
	var out strings.Builder
	texts.print(screen{Writer: &out, color: true})
	if got, want := out.String(), "\x1b[2mA\x1b[0m  \x1b[2mB\x1b[0m\n\x1b[32ma\x1b[0m  b\n"; got != want {
		t.Errorf("table with colours = %q, want %q", got, want)
	}
}

func TestColumns(t *testing.T) {
	for text, want := range map[string]int{
		"":                       0,
		"plain":                  5,
		"café":                   4,
		"cafe\u0301":             4, // with a combining mark
		"日本語":                    6,
		"ﾆﾎﾝ":                    3, // half as wide
		"Ａ１":                     4,
		"한국어":                    6,
		"🚀 go":                   5,
		"❤\ufe0f":                1,
		"ไทย กี่":                5,
		"…–→":                    3,
		"\u20dd":                 0, // an enclosing mark
		"Ελληνικά Привет":        15,
		"नमस्ते":                 4, // some terminals join two of the characters into one
		"𠮷":                      2,
		strings.Repeat("界", 100): 200,
	} {
		if got := columns(text); got != want {
			t.Errorf("columns(%q) = %d, want %d", text, got, want)
		}
	}
}

func TestShorten(t *testing.T) {
	for _, tt := range []struct {
		text string
		most int
		want string
	}{
		{"plain", 5, "plain"},
		{"plain", 4, "pla…"},
		{"plain", 1, "…"},
		{"日本語", 6, "日本語"},
		{"日本語", 5, "日本…"},
		{"日本語", 4, "日…"}, // half a character is not shown
		{"日本語", 2, "…"},
		{"cafe\u0301s", 5, "cafe\u0301s"},
		{"cafe\u0301s!", 5, "cafe\u0301…"},
		{"🚀🚀🚀", 5, "🚀🚀…"},
	} {
		got := shorten(tt.text, tt.most)
		if got != tt.want {
			t.Errorf("shorten(%q, %d) = %q, want %q", tt.text, tt.most, got, tt.want)
		}
		if n := columns(got); n > tt.most {
			t.Errorf("shorten(%q, %d) = %q takes %d columns, want at most %d", tt.text, tt.most, got, n, tt.most)
		}
	}
}
