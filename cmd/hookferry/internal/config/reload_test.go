package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestWatchNoticesChangedFiles changes the files of settings as editors and secret managers do.
func TestWatchNoticesChangedFiles(t *testing.T) {
	text := strings.Replace(minimal, "k1", `"file:key"`, 1)
	for _, tt := range []struct {
		name   string
		change func(t *testing.T, dir string)
		want   bool
	}{
		{"nothing", func(*testing.T, string) {}, false},
		{"another file", func(t *testing.T, dir string) { replace(t, filepath.Join(dir, "other"), "x") }, false},
		{"written in place", func(t *testing.T, dir string) {
			if err := os.WriteFile(filepath.Join(dir, "hookferry.yaml"), []byte(text+"# more\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, true},
		{"replaced by a file of the same size", func(t *testing.T, dir string) { replace(t, filepath.Join(dir, "hookferry.yaml"), text) }, true},
		{"a secret replaced", func(t *testing.T, dir string) { replace(t, filepath.Join(dir, "key"), "k2") }, true},
		{"removed", func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, "key")); err != nil {
				t.Fatal(err)
			}
		}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "hookferry.yaml")
			replace(t, path, text)
			replace(t, filepath.Join(dir, "key"), "k1")
			watchChange(t, path, func() { tt.change(t, dir) }, tt.want)
		})
	}
}

// replace writes a file in one step, by a rename.
func replace(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// watchChange watches the files of settings while change changes them. The watch must notice the
// change if want is true.
func watchChange(t *testing.T, path string, change func(), want bool) {
	t.Helper()
	s, err := Load(path, env(nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	w := NewWatch(s)
	for range 2 {
		if w.Changed() {
			t.Fatal("Changed = true, want false, as nothing has changed")
		}
	}
	change()
	if w.Changed() {
		t.Error("Changed = true at the first check after a change, want false, as the writer may not be done")
	}
	if got := w.Changed(); got != want {
		t.Errorf("Changed = %v, want %v", got, want)
	}
}

// TestWatchNoticesFilesThatWereMissing shows that a watch notices a file that was missing when Load
// read the settings.
func TestWatchNoticesFilesThatWereMissing(t *testing.T) {
	path := write(t, strings.Replace(minimal, "k1", `"file:key"`, 1))
	s, err := Load(path, env(nil), nil)
	if err == nil {
		t.Fatal("Load without the key file returned no error")
	}
	w := NewWatch(s)
	for range 2 {
		if w.Changed() {
			t.Fatal("Changed = true, want false, as nothing has changed")
		}
	}
	if err := os.WriteFile(filepath.Join(filepath.Dir(path), "key"), []byte("k1"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.Changed()
	if !w.Changed() {
		t.Error("Changed = false, want true, as the missing file is there")
	}
	if _, err := Load(path, env(nil), nil); err != nil {
		t.Error(err)
	}
}
