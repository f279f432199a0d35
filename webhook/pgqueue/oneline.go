package pgqueue

import (
	"slices"
	"strings"
)

// A lineError is an error whose text has several lines, on one.
type lineError struct {
	text string
	err  error
}

func (e *lineError) Error() string { return e.text }
func (e *lineError) Unwrap() error { return e.err }

// oneLine returns err with its text on one line. The driver's has one for each try to
// connect, the same where it tries again without TLS; each is told once.
func oneLine(err error) error {
	if err == nil || !strings.Contains(err.Error(), "\n") {
		return err
	}
	first, rest, _ := strings.Cut(err.Error(), "\n")
	var tries []string
	for line := range strings.Lines(rest) {
		line = strings.TrimSpace(line)
		if !slices.ContainsFunc(tries, func(told string) bool { return strings.HasSuffix(told, line) }) {
			tries = append(tries, line)
		}
	}
	return &lineError{strings.TrimSpace(first) + " " + strings.Join(tries, "; "), err}
}
