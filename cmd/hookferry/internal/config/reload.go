package config

import (
	"os"
	"reflect"
	"slices"
	"time"
)

// A File is a file that settings were read from, with its state at that time.
type File struct {
	Path string
	info os.FileInfo // nil if the file did not exist, or could not be looked at
}

func stat(path string) File {
	// Use os.Stat, which follows symbolic links: Kubernetes replaces files by changing links.
	info, _ := os.Stat(path)
	return File{path, info}
}

// same reports whether f and g are the same file with the same size and modification time.
func (f File) same(g File) bool {
	if f.info == nil || g.info == nil {
		return f.info == nil && g.info == nil
	}
	return os.SameFile(f.info, g.info) && f.info.Size() == g.info.Size() && f.info.ModTime().Equal(g.info.ModTime())
}

// A Watch notices when files change, by comparing their states. That works on every file system.
type Watch struct {
	read []File // the states when the settings were read
	seen []File // the states at the last call of Changed; nil before the first
}

// WatchEvery is the time between two calls of Changed.
const WatchEvery = time.Second

// NewWatch returns a Watch for the files of settings that have just been loaded.
func NewWatch(s *Settings) *Watch { return &Watch{read: s.Files} }

// Changed reports whether a file has changed since the settings were read, and no file has changed
// since the last call of Changed. So a slow program can finish writing a file.
func (w *Watch) Changed() bool {
	now := make([]File, len(w.read))
	for i, f := range w.read {
		now[i] = stat(f.Path)
	}
	changed := !slices.EqualFunc(now, w.read, File.same)
	settled := slices.EqualFunc(now, w.seen, File.same)
	w.seen = now
	return changed && settled
}

// Keep gives each unchanged destination the Webhook pointer of the same destination in old, the
// settings in use. A forwarder recognises an unchanged destination by this pointer.
func (s *Settings) Keep(old *Settings) {
	for i := range s.Destinations {
		d := &s.Destinations[i]
		before := old.Destination(d.ID)
		if before == nil {
			continue
		}
		is, was := *d, *before
		is.Webhook, was.Webhook = nil, nil
		if reflect.DeepEqual(is, was) {
			d.Webhook = before.Webhook
		}
	}
}

// Changed returns the ids of the destinations of next that s does not have, or has with another
// Webhook.
func (s *Settings) Changed(next *Settings) (ids []string) {
	for i := range next.Destinations {
		d := &next.Destinations[i]
		if was := s.Destination(d.ID); was == nil || was.Webhook != d.Webhook {
			ids = append(ids, d.ID)
		}
	}
	return ids
}

// AwaitRestart undoes the changes since old, the settings at the start, that count only after a
// restart, and returns their keys. Switching TLS on or off needs a restart; a new certificate needs
// none.
func (s *Settings) AwaitRestart(old *Settings) []string {
	var keys []string
	var compare func(key string, is, was reflect.Value)
	compare = func(key string, is, was reflect.Value) {
		for i := range is.NumField() {
			field, is, was := is.Type().Field(i), is.Field(i), was.Field(i)
			key := under(key, field.Tag.Get("yaml"))
			switch {
			case field.Tag.Get("restart") == "" && is.Kind() == reflect.Struct:
				compare(key, is, was)
			case field.Tag.Get("restart") == "":
			case is.Kind() == reflect.Pointer && is.IsNil() != was.IsNil(),
				is.Kind() != reflect.Pointer && !reflect.DeepEqual(is.Interface(), was.Interface()):
				keys = append(keys, key)
				is.Set(was)
			}
		}
	}
	if s.Queue.follows(&old.Queue) {
		s.Queue.URL = old.Queue.URL
	}
	compare("", reflect.ValueOf(s).Elem(), reflect.ValueOf(old).Elem())
	return keys
}
