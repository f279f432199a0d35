package esjson

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hookferry/analytics/internal/soakenv"
)

func TestAppendWritesTheCanonicalFormAfterDst(t *testing.T) {
	for _, tt := range []struct{ name, src, want string }{
		{"unchanged", `{"a":[1,"é"]}`, `{"a":[1,"é"]}`},
		{"changed", ` { "a" : [ 1.0 ] } `, `{"a":[1]}`},
		{"reordered", `{"b":1,"7":{"y":1,"x":2,"y":3},"b":[{"c":0,"1":1}]}`, `{"7":{"y":3,"x":2},"b":[{"1":1,"c":0}]}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, room := range []int{0, 1000} {
				dst := append(make([]byte, 0, 3+room), `{"b`...)
				got, err := Append(dst, []byte(tt.src))
				if err != nil || string(got) != `{"b`+tt.want {
					t.Errorf("Append(%q, %q) with room for %d = %q, %v; want dst and %q", dst, tt.src, room, got, err, tt.want)
				}
			}
		})
	}
}

func TestAppendReturnsWhereTheSyntaxErrorIs(t *testing.T) {
	for _, tt := range []struct {
		name, src string
		want      SyntaxError
	}{
		{"empty", "", SyntaxError{0, "unexpected end"}},
		{"only space", "  ", SyntaxError{2, "unexpected end"}},
		{"cut short", `{"a":[1`, SyntaxError{7, "unexpected end"}},
		{"cut in a string", `["abc`, SyntaxError{5, "unexpected end"}},
		{"cut in a literal", `[tru`, SyntaxError{4, "unexpected end"}},
		{"cut in a number", `-`, SyntaxError{1, "unexpected end"}},
		{"byte order mark", "\ufeff{}", SyntaxError{0, "unexpected character"}},
		{"key without quotes", `{"a":1,b:2}`, SyntaxError{7, "unexpected character"}},
		{"comma at the end", `[1,]`, SyntaxError{3, "unexpected character"}},
		{"leading zero", `[-01]`, SyntaxError{2, "number with a leading zero"}},
		{"escape", `["\x"]`, SyntaxError{2, "invalid escape sequence"}},
		{"control character", "[\"a\n\"]", SyntaxError{3, "control character in a string"}},
		{"second value", "1 2", SyntaxError{2, "more after the value"}},
		{"depth", strings.Repeat("[", MaxDepth+1), SyntaxError{MaxDepth, "nested deeper than 1000 levels"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Append([]byte("kept"), []byte(tt.src))
			var syntax *SyntaxError
			if !errors.As(err, &syntax) || *syntax != tt.want || string(got) != "kept" {
				t.Errorf("Append(%.20q) = %q, %v; want dst unchanged and %v", tt.src, got, err, &tt.want)
			}
			if errors.Is(err, ErrDepth) != (tt.name == "depth") {
				t.Errorf("Append(%.20q): errors.Is(%v, ErrDepth) = %t, want %t", tt.src, err, errors.Is(err, ErrDepth), tt.name == "depth")
			}
		})
	}
}

// TestAppendTakesLinearTime encodes texts for which a simple algorithm takes quadratic time. In the
// soak, each text is so large that such an algorithm takes minutes. In an ordinary test run the
// texts are small, and the test checks only the output.
func TestAppendTakesLinearTime(t *testing.T) {
	n := 3000
	if soakenv.On() {
		n = 300_000
	}
	var sameHash, copies strings.Builder
	for i := range n { // keys that differ only in the middle
		fmt.Fprintf(&sameHash, `"prefix--%09d--suffix":0,`, i)
	}
	for i := range n {
		fmt.Fprintf(&copies, `"k":%d,`, i)
	}
	wide := `"w":"` + strings.Repeat("x", 64*n) + `"`
	for _, tt := range []struct{ name, src string }{
		{"many keys", "{" + sameHash.String() + `"z":1}`},
		{"many keys, one twice", "{" + sameHash.String() + `"prefix--000000000--suffix":1}`},
		{"one key many times", "{" + copies.String() + `"k":1}`},
		{"indices descending", string(manyKeys(n))},
		{"large members moved at every depth", string(nested(`{"b":0,"1":`, "{"+wide+"}", `,"b":2}`, MaxDepth-1))},
		{"moves inside dropped members", string(nested(`{"a":{"x":1,"x":2},"a":`, "1", `,"a":3}`, MaxDepth-1))},
		{"many small moves", "[" + strings.Repeat(`{"b":1,"b":2},`, n) + "1]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			start := time.Now()
			out, err := Append(nil, []byte(tt.src))
			if err != nil {
				t.Fatal(err)
			}
			if took := time.Since(start); soakenv.On() && took > time.Minute {
				t.Errorf("Append took %v for %d bytes, want at most a minute", took, len(tt.src))
			}
			again, err := Append(nil, out)
			if err != nil || string(again) != string(out) {
				t.Errorf("Append changes its own output of %d bytes, error %v", len(out), err)
			}
		})
	}
}

func TestTypicalBodyHasATypicalSize(t *testing.T) {
	if n := len(typicalBody); n < 440 || n > 480 {
		t.Errorf("typicalBody has %d bytes, want 440 to 480", n)
	}
}
