package esjson

import (
	"errors"
	"testing"
)

func TestAppendString(t *testing.T) {
	for _, tt := range []struct{ name, s, want string }{
		{"empty", "", `""`},
		{"plain", "plain", `"plain"`},
		{"quotes", `a"b\c/d`, `"a\"b\\c/d"`},
		{"control characters", "\x00\x07\b\t\n\v\f\r\x1b\x1f", `"\u0000\u0007\b\t\n\u000b\f\r\u001b\u001f"`},
		{"markup", "<a href='x'>&amp;</a>\u2028\u2029\x7f", "\"<a href='x'>&amp;</a>\u2028\u2029\x7f\""},
		{"characters of two to four bytes", "é€😀", `"é€😀"`},
		{"after eight bytes", "12345678\n12345678\"1234567é", `"12345678\n12345678\"1234567é"`},
		{"replacement character", "\ufffd", "\"\ufffd\""},
		{"stray bytes", "a\x80b\xffc", "\"a\ufffdb\ufffdc\""},
		{"maximal subparts", "\xf0\x9f\x98\xe2\x82\xc3", "\"\ufffd\ufffd\ufffd\""},
		{"surrogates", "\xed\xa0\x80", "\"\ufffd\ufffd\ufffd\""},
		{"overlong", "\xc0\xaf\xe0\x80\xaf", "\"\ufffd\ufffd\ufffd\ufffd\ufffd\""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := string(AppendString([]byte("x"), tt.s)); got != "x"+tt.want {
				t.Errorf("AppendString(%q) = %q, want x and %q", tt.s, got, tt.want)
			}
		})
	}
}

func TestAppendText(t *testing.T) {
	for _, tt := range []struct{ name, literal, want string }{
		{"empty", `""`, ""},
		{"plain", `"plain é 😀"`, "plain é 😀"},
		{"escapes", `"\"\\\/\b\f\n\r\t"`, "\"\\/\b\f\n\r\t"},
		{"units", `"\u0041\u00e9\u20AC\u0000"`, "Aé€\x00"},
		{"pair", `"\uD83D\ude00!"`, "😀!"},
		{"lone surrogates", `"\ud83d-\ude00\ud83d\ud83d\ude00"`, "\ufffd-\ufffd\ufffd😀"},
		{"invalid UTF-8", "\"a\xe2\x82b\xed\xa0\x80\"", "a\ufffdb\ufffd\ufffd\ufffd"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := AppendText([]byte("x"), []byte(tt.literal))
			if err != nil || string(got) != "x"+tt.want {
				t.Errorf("AppendText(%q) = %q, %v; want x and %q", tt.literal, got, err, tt.want)
			}
		})
	}
}

func TestAppendTextErrors(t *testing.T) {
	for _, tt := range []struct {
		name, literal string
		want          SyntaxError
	}{
		{"empty", "", SyntaxError{0, "unexpected end"}},
		{"number", "1", SyntaxError{0, "unexpected character"}},
		{"space before", ` "a"`, SyntaxError{0, "unexpected character"}},
		{"space after", `"a" `, SyntaxError{3, "more after the value"}},
		{"open", `"a\"`, SyntaxError{4, "unexpected end"}},
		{"escape", `"\q"`, SyntaxError{1, "invalid escape sequence"}},
		{"escape cut short", `"\u00"`, SyntaxError{1, "invalid escape sequence"}},
		{"control character", "\"a\x00\"", SyntaxError{2, "control character in a string"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := AppendText([]byte("kept"), []byte(tt.literal))
			var syntax *SyntaxError
			if !errors.As(err, &syntax) || *syntax != tt.want || string(got) != "kept" {
				t.Errorf("AppendText(%q) = %q, %v; want dst unchanged and %v", tt.literal, got, err, &tt.want)
			}
		})
	}
}

// If dst has room, appendString copies a string while it checks whether the string is plain ASCII.
// The result must not depend on the room, and the bytes after the result must not change.
func TestAppendStringWritesTheSameWithAndWithoutRoom(t *testing.T) {
	for n := range 40 {
		for at := -1; at < n; at++ {
			for _, c := range []byte{0, 0x1f, ' ', '"', '\\', '~', 0x7f, 0x80, 0xff} {
				text := []byte("abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGH")[:n]
				if at >= 0 {
					text[at] = c
				}
				s := string(text)
				want, mended := appendOddString([]byte("kept"), s)
				for _, room := range []int{0, 1, n + 1, n + 2, n + 100} {
					dst := append(make([]byte, 0, 4+room), "kept"...)
					got, gotMended := appendString(dst, s)
					if string(got) != string(want) || gotMended != mended {
						t.Fatalf("with room for %d, appendString(%q) = %s, %v, want %s, %v", room, s, got, gotMended, want, mended)
					}
					past := dst[4:cap(dst)]
					for _, b := range past[min(len(past), len(got)-4):] {
						if b != 0 {
							t.Fatalf("with room for %d, appendString(%q) wrote after the end of its result", room, s)
						}
					}
				}
			}
		}
	}
}
