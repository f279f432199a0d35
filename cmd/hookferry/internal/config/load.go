package config

import (
	"errors"
	"path/filepath"
	"slices"
	"time"
)

// Load reads, checks and completes the settings of a file. Variables come from
// getenv; one that is empty is not set. The error is an *Error, and then the
// settings hold Path and Files alone, for who waits for a change.
func Load(path string, getenv func(string) string) (*Settings, error) {
	d := newDecoder(path, getenv)
	s := Default()
	s.Path, s.Loaded = path, time.Now()
	text, err := d.readFile(path, MaxFile)
	if err != nil {
		d.problem("", "%v", withoutPath(err))
	} else {
		d.decode(text, s)
	}
	// What could not be read is not checked: it would be told twice.
	var wrong *Error
	if len(d.problems) == 0 && errors.As(s.Complete(), &wrong) {
		for _, p := range wrong.Problems {
			d.problems = append(d.problems, d.placed(p))
		}
	}
	if len(d.problems) > 0 {
		slices.SortStableFunc(d.problems, func(a, b Problem) int {
			if a.Line != b.Line {
				return a.Line - b.Line
			}
			return a.Column - b.Column
		})
		return &Settings{Path: path, Files: d.files}, &Error{Path: path, Problems: d.problems}
	}
	if s.Data != "" && !filepath.IsAbs(s.Data) {
		s.Data = filepath.Join(d.folder, s.Data)
	}
	s.Files = d.files
	return s, nil
}
