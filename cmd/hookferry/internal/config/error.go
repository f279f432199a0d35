package config

import (
	"fmt"
	"strings"
)

// An Error says what is wrong with settings: all of it, as far as it could be
// told.
type Error struct {
	// Path is the file, "" if they were made of flags.
	Path     string
	Problems []Problem // at least one, in the order of the file
}

// A Problem is one thing that is wrong. It repeats nothing of what is in the
// file but keys.
type Problem struct {
	// Key is what it is about, such as "destinations[0].endpoints[1].url"; ""
	// is all of the file.
	Key string `json:"key"`
	// Line and Column say where that is, from 1; 0 if there is no file.
	Line   int `json:"line,omitempty"`
	Column int `json:"column,omitempty"`
	// Text says what is wrong, and what is allowed.
	Text string `json:"problem"`
}

// Error returns a line for each problem.
func (e *Error) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = e.Line(p)
	}
	return strings.Join(lines, "\n")
}

// Line says what one of the problems is and where.
func (e *Error) Line(p Problem) string {
	var b strings.Builder
	if e.Path != "" {
		b.WriteString(e.Path + ":")
		if p.Line > 0 {
			fmt.Fprintf(&b, "%d:%d:", p.Line, p.Column)
		}
		b.WriteByte(' ')
	}
	if p.Key != "" {
		b.WriteString(p.Key + ": ")
	}
	b.WriteString(p.Text)
	return b.String()
}
