package config

import (
	"path/filepath"
	"slices"
	"time"
)

// Load reads, checks and completes the settings of a file. Variables come from
// getenv; one that is empty is not set. What change changes counts in place of
// what the file says. The error is an *Error or that of change, and then the
// settings hold Path and Files alone, for who waits for a change of the files.
func Load(path string, getenv func(string) string, change func(*Settings) error) (*Settings, error) {
	d := newDecoder(path, getenv)
	s := Default()
	s.Path, s.Loaded = path, time.Now()
	text, err := d.readFile(path, MaxFile)
	if err != nil {
		d.problem("", "%v", withoutPath(err))
	} else {
		d.decode(text, s)
	}
	for _, path := range []*string{&s.Data, &s.Queue.NATS.Credentials} {
		if *path != "" && !filepath.IsAbs(*path) {
			*path = filepath.Join(d.folder, *path)
		}
	}
	if change != nil {
		if err := change(s); err != nil {
			return &Settings{Path: path, Files: d.files}, err
		}
	}
	for _, p := range s.complete(d.problems, d.places) {
		if len(d.problems) < maxProblems {
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
	s.Files = d.files
	return s, nil
}
