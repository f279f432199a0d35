package config

import (
	"os"
	"time"
)

// A File is a file that settings were read from, as it was.
type File struct {
	Path string
	info os.FileInfo // nil: it was not there
}

func stat(path string) File {
	info, err := os.Stat(path) // follows links, by which Kubernetes replaces files
	if err != nil {
		return File{Path: path}
	}
	return File{path, info}
}

// same reports whether f and g are the same file, with the same content as far
// as the system notes changes.
func (f File) same(g File) bool {
	if f.info == nil || g.info == nil {
		return f.info == nil && g.info == nil
	}
	return os.SameFile(f.info, g.info) && f.info.Size() == g.info.Size() && f.info.ModTime().Equal(g.info.ModTime())
}

// A Watch notices that files have changed. It compares their state whenever it is
// asked, which works with every way to replace a file, and on every file system.
type Watch struct {
	read []File // as they were when they were read
	seen []File // as they were when Changed looked the last time; nil: as read
}

// WatchEvery is how often Changed is to be called.
const WatchEvery = time.Second

// NewWatch returns a Watch of the files of settings that were just loaded.
func NewWatch(s *Settings) *Watch { return &Watch{read: s.Files} }

// Changed reports whether a file differs from what was read, and no file has changed
// since the call before: a writer may take some time until a file is whole.
func (w *Watch) Changed() bool {
	now := make([]File, len(w.read))
	changed, settled := false, w.seen != nil
	for i, f := range w.read {
		now[i] = stat(f.Path)
		changed = changed || !now[i].same(f)
		settled = settled && now[i].same(w.seen[i])
	}
	if w.seen = now; !changed {
		w.seen = nil
	}
	return changed && settled
}
