package config

import (
	"fmt"
	"strings"
)

// An Error lists all problems of settings that were found.
type Error struct {
	// Path is the file, "" if the settings come from flags.
	Path     string
	Problems []Problem // at least one, in the order of the file
}

// A Problem is one wrong value or key of settings. It never repeats a value of the file, only keys.
type Problem struct {
	// Key names the value, such as "destinations[0].endpoints[1].url". Empty means the whole file.
	Key string `json:"key"`
	// Line and Column are the place of the value, from 1. They are 0 if there is no file.
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

// Line returns the text of a problem, with its place.
func (e *Error) Line(p Problem) string {
	text := p.Text
	if p.Key != "" {
		text = p.Key + ": " + text
	}
	switch {
	case e.Path == "":
		return text
	case p.Line == 0:
		return e.Path + ": " + text
	}
	return fmt.Sprintf("%s:%d:%d: %s", e.Path, p.Line, p.Column, text)
}
