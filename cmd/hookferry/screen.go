package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"reflect"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/term"
)

// A screen is the output of a command. Only a terminal has colours, a width, and text to overwrite.
type screen struct {
	io.Writer
	terminal      bool
	color         bool
	width, height int // in characters; 0 means no bound
}

func (p process) screen(w io.Writer) screen {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) || p.getenv("TERM") == "dumb" {
		return screen{Writer: w}
	}
	s := screen{Writer: w, terminal: true, color: p.getenv("NO_COLOR") == ""}
	if width, height, err := term.GetSize(int(f.Fd())); err == nil {
		s.width, s.height = width, height
	}
	return s
}

// A style is the look of a text on a terminal: the parameters of its escape sequence.
type style string

const (
	normal style = ""
	bold   style = "1"
	faint  style = "2"
	good   style = "32" // green
	uneasy style = "33" // yellow
	bad    style = "31" // red
)

// paint returns a text in a style. The text must have no control characters; see clean.
func (s screen) paint(how style, text string) string {
	if !s.color || how == normal || text == "" {
		return text
	}
	return "\x1b[" + string(how) + "m" + text + "\x1b[0m"
}

// print prints a line of text with control characters escaped.
func (s screen) print(format string, args ...any) {
	fmt.Fprintln(s, clean(fmt.Sprintf(format, args...)))
}

// cut shortens a text to a number of columns if the screen has a width.
func (s screen) cut(text string, most int) string {
	if s.width == 0 {
		return text
	}
	return shorten(text, most)
}

// fields prints a line for each label and its value, unless the value is zero. The labels take up
// to width columns.
func (s screen) fields(width int, list ...any) {
	for i := 0; i < len(list); i += 2 {
		if value := list[i+1]; !reflect.ValueOf(value).IsZero() {
			s.line(width+1, list[i].(string), fmt.Sprint(value))
		}
	}
}

// line prints values as a table does, after a label, on more lines if the terminal is too narrow.
func (s screen) line(indent int, label string, values ...any) {
	used := indent
	fmt.Fprint(s, s.paint(faint, label), strings.Repeat(" ", indent-len(label)))
	for i, v := range values {
		c := cellOf(v)
		length := columns(c.text)
		switch {
		case i > 0 && s.width > 0 && used+gap+length > s.width:
			fmt.Fprint(s, "\n", strings.Repeat(" ", indent))
			used = indent
		case i > 0:
			fmt.Fprint(s, strings.Repeat(" ", gap))
			used += gap
		}
		fmt.Fprint(s, s.paint(c.style, c.text))
		used += length
	}
	fmt.Fprintln(s)
}

// clean escapes unprintable characters, so that a terminal does not interpret them.
func clean(text string) string {
	if utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return text
	}
	quoted := strconv.Quote(text)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}

// cleanLines is like clean, but keeps line breaks.
func cleanLines(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = clean(line)
	}
	return strings.Join(lines, "\n")
}

// printJSON writes a value as a line of JSON, with control characters escaped.
func printJSON(w io.Writer, v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err
	}
	_, err := io.WriteString(w, escapeJSON(b.String()))
	return err
}

// pretty returns body, indented and with a newline at the end. It escapes control characters.
func pretty(body []byte) string {
	var indented bytes.Buffer
	if json.Indent(&indented, body, "", "  ") != nil {
		return strconv.Quote(string(body)) + "\n"
	}
	return escapeJSON(indented.String()) + "\n"
}

// escapeJSON escapes the control characters in JSON, which keeps its meaning.
func escapeJSON(text string) string {
	var b strings.Builder
	for _, r := range text {
		switch {
		case r == '\n' || unicode.IsPrint(r):
			b.WriteRune(r)
		case r > 0xffff:
			// In JSON, a character above U+FFFF can only be in a string, so it may be escaped.
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}
