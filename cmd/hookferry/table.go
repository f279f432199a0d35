package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/mattn/go-runewidth"
)

type table struct {
	columns []column
	rows    []row
}

type row struct {
	cells []cell
	notes []string // printed below the row, one a line; without control characters
}

// A column is a column of a table. If the terminal is too narrow, the table shortens its flexible
// column, and then leaves out columns, those with the highest spare first, but none whose spare is 0.
type column struct {
	title    string
	right    bool
	spare    int
	flexible bool
}

// A cell is a text with its style.
type cell struct {
	text string
	style
}

const (
	leastFlexible = 12 // characters, to which the flexible column is shortened before others are left out
	gap           = 2  // spaces between columns
)

// cellOf returns the cell of a text, a number or a cell, with control characters escaped.
func cellOf(v any) cell {
	switch v := v.(type) {
	case cell:
		return cell{clean(v.text), v.style}
	case int:
		return cell{text: grouped(v)}
	case int64:
		return cell{text: grouped(v)}
	}
	return cell{text: clean(fmt.Sprint(v))}
}

// add adds a row of values; see cellOf.
func (t *table) add(values ...any) {
	var r row
	for _, v := range values {
		r.cells = append(r.cells, cellOf(v))
	}
	t.rows = append(t.rows, r)
}

func (t *table) note(lines ...string) { t.rows[len(t.rows)-1].notes = lines }

func (t *table) print(s screen) {
	header := row{cells: make([]cell, len(t.columns))}
	for i, c := range t.columns {
		header.cells[i] = cell{c.title, faint}
	}
	rows := append([]row{header}, t.rows...)
	widths := make([]int, len(t.columns))
	for _, row := range rows {
		for i, c := range row.cells {
			widths[i] = max(widths[i], columns(c.text))
		}
	}
	t.fit(widths, s.width)
	for _, row := range rows {
		t.printRow(s, row.cells, widths)
		for _, note := range row.notes {
			fmt.Fprintf(s, "%*s%s\n", gap, "", s.paint(faint, s.cut(note, s.width-gap)))
		}
	}
}

func (t *table) printRow(s screen, cells []cell, widths []int) {
	var line strings.Builder
	pad := 0
	for i, c := range cells {
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

// fit reduces widths, of 0 for columns that are left out, until the columns take at most total
// characters. A total of 0 means no bound.
func (t *table) fit(widths []int, total int) {
	flexible := slices.IndexFunc(t.columns, func(c column) bool { return c.flexible })
	for total > 0 {
		over, spare := -gap-total, -1
		for i, c := range t.columns {
			if widths[i] > 0 {
				over += widths[i] + gap
				if c.spare > 0 && (spare < 0 || c.spare > t.columns[spare].spare) {
					spare = i
				}
			}
		}
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

// narrow counts characters of ambiguous width as one column.
var narrow = &runewidth.Condition{}

// columns returns how many terminal columns a clean text takes.
func columns(text string) int { return narrow.StringWidth(text) }

// shorten cuts text to a number of columns.
func shorten(text string, most int) string { return narrow.Truncate(text, most, "…") }
