package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"
)

// A screen is what a command prints on. Without a terminal it has no colours,
// no end of a line, and nothing is written over.
type screen struct {
	io.Writer
	terminal      bool
	color         bool
	width, height int // 0: no bound
}

// screen says what is known of w.
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

// A style is how a terminal shows a text: the numbers of its escape sequence.
type style string

const (
	normal style = ""
	bold   style = "1"
	faint  style = "2"
	good   style = "32" // green
	uneasy style = "33" // yellow
	bad    style = "31" // red
)

// paint returns a text that is clean in a style.
func (s screen) paint(how style, text string) string {
	if !s.color || how == normal || text == "" {
		return text
	}
	return "\x1b[" + string(how) + "m" + text + "\x1b[0m"
}

// clean returns text with what a terminal would obey rather than show escaped.
func clean(text string) string {
	if strings.IndexFunc(text, unprintable) < 0 && utf8.ValidString(text) {
		return text
	}
	quoted := strconv.Quote(text)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}

// cleanLines is clean, but for the ends of lines.
func cleanLines(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = clean(line)
	}
	return strings.Join(lines, "\n")
}

func unprintable(r rune) bool { return !unicode.IsPrint(r) }

// printJSON writes a value on a line of its own. It stays the same value where
// characters are escaped for terminals.
func printJSON(w io.Writer, v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err
	}
	_, err := w.Write(appendEscaped(nil, b.Bytes()))
	return err
}

// jsonOut is where JSON is printed, nil if it is not.
func jsonOut(wanted bool, p process) io.Writer {
	if !wanted {
		return nil
	}
	return p.stdout
}

// A table prints rows in columns.
type table struct {
	columns []column
	rows    [][]cell
	notes   map[int][]string // clean texts, for the lines below a row
}

// A column that finds no room is left out, the one with the highest spare
// first; one with spare 0 stays. One that is flexible is cut to what is left.
type column struct {
	title    string
	right    bool
	spare    int
	flexible bool
}

// A cell is a clean text and how it is shown.
type cell struct {
	text string
	style
}

// leastFlexible is how far a flexible column is cut before others are left out.
const leastFlexible = 12

const gap = 2 // between columns

func (t *table) add(cells ...cell) { t.rows = append(t.rows, cells) }

// note adds lines below the latest row.
func (t *table) note(lines ...string) {
	if t.notes == nil {
		t.notes = map[int][]string{}
	}
	t.notes[len(t.rows)-1] = lines
}

// print prints the rows below their titles.
func (t *table) print(s screen) {
	widths := make([]int, len(t.columns))
	for i, c := range t.columns {
		widths[i] = columns(c.title)
		for _, row := range t.rows {
			widths[i] = max(widths[i], columns(row[i].text))
		}
	}
	t.fit(widths, s.width)
	header := make([]cell, len(t.columns))
	for i, c := range t.columns {
		header[i] = cell{c.title, faint}
	}
	t.printRow(s, header, widths)
	for i, row := range t.rows {
		t.printRow(s, row, widths)
		for _, note := range t.notes[i] {
			indent := strings.Repeat(" ", gap)
			if s.width > 0 {
				note = shorten(note, s.width-gap)
			}
			fmt.Fprintln(s, indent+s.paint(faint, note))
		}
	}
}

func (t *table) printRow(s screen, row []cell, widths []int) {
	var line strings.Builder
	pad := 0
	for i, c := range row {
		if widths[i] == 0 {
			continue
		}
		text := shorten(c.text, widths[i])
		space := widths[i] - columns(text)
		if t.columns[i].right {
			pad, space = pad+space, 0
		}
		if text != "" {
			line.WriteString(strings.Repeat(" ", pad) + s.paint(c.style, text))
			pad = 0
		}
		pad += space + gap
	}
	fmt.Fprintln(s, line.String())
}

// fit makes widths of columns fit into total; 0 leaves a column out.
func (t *table) fit(widths []int, total int) {
	if total <= 0 {
		return
	}
	for {
		used, flexible, spare := -gap, -1, -1
		for i, c := range t.columns {
			if widths[i] == 0 {
				continue
			}
			used += widths[i] + gap
			if c.flexible {
				flexible = i
			}
			if c.spare > 0 && (spare < 0 || c.spare > t.columns[spare].spare) {
				spare = i
			}
		}
		over := used - total
		switch {
		case over <= 0:
			return
		case flexible >= 0 && (widths[flexible]-over >= leastFlexible || spare < 0 && widths[flexible] > over):
			widths[flexible] -= over
			return
		case spare < 0:
			return
		}
		widths[spare] = 0
	}
}
