package config

import (
	"crypto/rand"
	_ "embed"
	"path/filepath"
	"strings"
	"time"
)

// Load reads, checks and completes the settings of a file. A variable for which getenv returns ""
// counts as not set. The function change, unless nil, may change the settings before the check. The
// error is an *Error or that of change; then the settings have only Path and Files, so that the
// files can be watched.
func Load(path string, getenv func(string) string, change func(*Settings) error) (*Settings, error) {
	r := newReader(path, getenv)
	s := Default()
	s.Path, s.Loaded = path, time.Now()
	text, err := r.readFile(path, MaxFile)
	if err != nil {
		r.problem("", "%v", withoutPath(err))
		r.unread = 1
	} else {
		r.decode(text, s)
	}
	for _, path := range []*string{&s.Data, &s.Queue.NATS.Credentials} {
		if *path != "" && !filepath.IsAbs(*path) {
			*path = filepath.Join(r.folder, *path)
		}
	}
	if change != nil {
		err = change(s)
	}
	if err == nil || r.unread > 0 {
		r.check(s)
		err = r.error(path)
	}
	s.Files = r.files
	if err != nil {
		return &Settings{Path: path, Files: r.files}, err
	}
	return s, nil
}

//go:embed example.yaml
var example string

// Example returns a configuration file that explains every key. It has a random write key and a
// random secret, so it can be used without changes.
func Example() string {
	return strings.NewReplacer("EXAMPLE-WRITE-KEY", rand.Text(), "EXAMPLE-SECRET", rand.Text()).Replace(example)
}
