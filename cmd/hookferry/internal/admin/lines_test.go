package admin

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

var errCut = errors.New("cut off")

// readLines reads a body byte by byte, and returns its lines.
func readLines(body io.Reader) (lines []string, err error) {
	r := httptest.NewRequest("PUT", "/", iotest.OneByteReader(body))
	in := linesOf(httptest.NewRecorder(), r)
	for line, e := range in.lines() {
		if e != nil {
			return lines, e
		}
		if line == "" || in.line == 0 {
			panic("lines yielded an empty line, or a line without a number")
		}
		lines = append(lines, line)
	}
	return lines, nil
}

func TestLinesOfABody(t *testing.T) {
	tests := []struct {
		name string
		body string
		want []string
		err  bool
	}{
		{"empty", "", nil, false},
		{"one", "a", []string{"a"}, false},
		{"ends with a line break", "a\nb\n", []string{"a", "b"}, false},
		{"line breaks and byte order mark of Windows", "\xef\xbb\xbfa\r\nb\r\n", []string{"a", "b"}, false},
		{"empty lines", "\n\na\n\r\n\nb", []string{"a", "b"}, false},
		{"white space is kept", " a \n\tb", []string{" a ", "\tb"}, false},
		{"byte order mark in the middle", "a\n\xef\xbb\xbfb", []string{"a", "\ufeffb"}, false},
		{"not UTF-8", "a\n\xff\nb", []string{"a"}, true},
		{"the longest", strings.Repeat("x", maxLine-1) + "\na", []string{strings.Repeat("x", maxLine-1), "a"}, false},
		{"too long", "a\n" + strings.Repeat("x", maxLine) + "\n", []string{"a"}, true},
	}
	for _, tt := range tests {
		got, err := readLines(strings.NewReader(tt.body))
		if diff := cmp.Diff(tt.want, got); diff != "" || (err != nil) != tt.err {
			t.Errorf("%s: error %v, want an error: %v; lines (-want +got):\n%s", tt.name, err, tt.err, diff)
		}
	}
}

// FuzzLines compares the lines with those that strings.Split finds. An upload that breaks off does
// not yield a part of a line.
func FuzzLines(f *testing.F) {
	f.Add("a\nb\r\n\nc", true)
	f.Add("\xef\xbb\xbfa\n\xff", false)
	f.Add("\r\r\n", true)
	f.Fuzz(func(t *testing.T, body string, cut bool) {
		if len(body) > maxLine/2 {
			return
		}
		var in io.Reader = strings.NewReader(body)
		rest := body
		if cut {
			in = io.MultiReader(in, iotest.ErrReader(errCut))
			rest = body[:strings.LastIndexByte(body, '\n')+1]
		}
		var want []string
		fails := cut
		for i, line := range strings.Split(rest, "\n") {
			line = strings.TrimSuffix(line, "\r")
			if i == 0 {
				line = strings.TrimPrefix(line, "\ufeff")
			}
			if !utf8.ValidString(line) {
				fails = true
				break
			}
			if line != "" {
				want = append(want, line)
			}
		}
		got, err := readLines(in)
		if diff := cmp.Diff(want, got); diff != "" || (err != nil) != fails {
			t.Errorf("body %q, cut %v: error %v, want an error: %v; lines (-want +got):\n%s", body, cut, err, fails, diff)
		}
		var refused *failure
		if err != nil && (!errors.As(err, &refused) || refused.status != http.StatusBadRequest) {
			t.Errorf("body %q: error %v, want a failure with the status 400", body, err)
		}
	})
}
