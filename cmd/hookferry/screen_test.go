package main

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// What outsiders wrote can neither move the cursor nor look like something else.
func TestCleanShowsOnlyWhatIsPrintable(t *testing.T) {
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
				t.Errorf("clean(%q) has %q", text, r)
			}
		}
		for _, r := range cleanLines(text) {
			if r != '\n' && !unicode.IsPrint(r) {
				t.Errorf("cleanLines(%q) has %q", text, r)
			}
		}
		var out strings.Builder
		if err := printJSON(&out, text); err != nil {
			t.Fatal(err)
		}
		for _, r := range strings.TrimSuffix(out.String(), "\n") {
			if !unicode.IsPrint(r) {
				t.Errorf("printJSON(%q) has %q", text, r)
			}
		}
		var back string
		if err := json.Unmarshal([]byte(out.String()), &back); err != nil || utf8.ValidString(text) && back != text {
			t.Errorf("printJSON(%q) is %q, which reads as %q, %v", text, out.String(), back, err)
		}
	}
}

func TestCleanLeavesTextsAlone(t *testing.T) {
	for _, text := range []string{"", "a b", `"quoted"`, `C:\folder`, "日本語", "café"} {
		if got := clean(text); got != text {
			t.Errorf("clean(%q) = %q", text, got)
		}
	}
}

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
		{"no bound", 0, `
A                              B  C   D
a long text of some words      1  cc  d
short                      1,000  c   dddd
  a note that is rather long
`},
		{"the flexible one is cut", 36, `
A                        B  C   D
a long text of som…      1  cc  d
short                1,000  c   dddd
  a note that is rather long
`},
		{"then the others are left out", 24, `
A                  B  C
a long text …      1  cc
short          1,000  c
  a note that is rather…
`},
		{"to the last", 10, `
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

// What is wide is aligned by the columns it takes, not by its characters.
func TestTableOfWideTexts(t *testing.T) {
	texts := table{columns: []column{{title: "A", flexible: true}, {title: "B", right: true}, {title: "C"}}}
	texts.add(cell{"日本語のお客様", normal}, cell{"1", normal}, cell{"x", normal})
	texts.add(cell{"cafe\u0301 🚀", normal}, cell{"二", normal}, cell{"x", normal})
	texts.add(cell{"plain", normal}, cell{"1,000", normal}, cell{"x", normal})
	texts.note("顧客の受信者が応答しません")
	for width, want := range map[int]string{ // of which some end in the middle of a character
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

func TestColours(t *testing.T) {
	texts := table{columns: []column{{title: "A"}, {title: "B"}}}
	texts.add(cell{"a", good}, cell{"b", normal})
	var out strings.Builder
	texts.print(screen{Writer: &out, color: true})
	if got, want := out.String(), "\x1b[2mA\x1b[0m  \x1b[2mB\x1b[0m\n\x1b[32ma\x1b[0m  b\n"; got != want {
		t.Errorf("with colours: %q, want %q", got, want)
	}
}

func TestRedraw(t *testing.T) {
	for _, tt := range []struct {
		name   string
		height int
		want   string
	}{
		{"room", 5, "\x1b[Ha\x1b[K\nb\x1b[K\nc\x1b[K\nd\x1b[K\n\x1b[J"},
		{"no room", 4, "\x1b[Ha\x1b[K\nb\x1b[K\nand 2 more lines\x1b[K\n\x1b[J"},
	} {
		var out strings.Builder
		if err := redraw(screen{Writer: &out, height: tt.height}, "a\nb\nc\nd\n"); err != nil || out.String() != tt.want {
			t.Errorf("%s: %q, %v, want %q", tt.name, out.String(), err, tt.want)
		}
	}
}
