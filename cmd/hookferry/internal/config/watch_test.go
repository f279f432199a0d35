package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestWatch changes the files of settings in the ways of editors, of secret
// managers and of Kubernetes.
func TestWatch(t *testing.T) {
	replace := func(t *testing.T, path, text string) {
		t.Helper()
		if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
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
		{"link to another folder", func(t *testing.T, dir string) {
			if err := os.Symlink("v2", filepath.Join(dir, "new")); err != nil {
				t.Skip(err)
			}
			if err := os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, "current")); err != nil {
				t.Fatal(err)
			}
		}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "hookferry.yaml")
			if tt.name == "link to another folder" {
				for _, v := range []string{"v1", "v2"} {
					if err := os.Mkdir(filepath.Join(dir, v), 0o700); err != nil {
						t.Fatal(err)
					}
					replace(t, filepath.Join(dir, v, "hookferry.yaml"), text)
					replace(t, filepath.Join(dir, v, "key"), "k1")
				}
				if err := os.Symlink("v1", filepath.Join(dir, "current")); err != nil {
					t.Skip("there are no links here:", err)
				}
				path = filepath.Join(dir, "current", "hookferry.yaml")
			} else {
				replace(t, path, text)
				replace(t, filepath.Join(dir, "key"), "k1")
			}
			s, err := Load(path, env(nil), nil)
			if err != nil {
				t.Fatal(err)
			}
			w := NewWatch(s)
			for range 2 {
				if w.Changed() {
					t.Fatal("Changed although nothing has")
				}
			}
			tt.change(t, dir)
			if w.Changed() {
				t.Error("Changed at the first sight: the writer may not be done")
			}
			if got := w.Changed(); got != tt.want {
				t.Errorf("Changed = %v, want %v", got, tt.want)
			}
		})
	}
}

// TestWatchOfMissingFiles: what was missing is noticed when it is there.
func TestWatchOfMissingFiles(t *testing.T) {
	path := write(t, strings.Replace(minimal, "k1", `"file:key"`, 1))
	s, err := Load(path, env(nil), nil)
	if err == nil {
		t.Fatal("Load without the key")
	}
	w := NewWatch(s)
	for range 2 {
		if w.Changed() {
			t.Fatal("Changed although nothing has")
		}
	}
	if err := os.WriteFile(filepath.Join(filepath.Dir(path), "key"), []byte("k1"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.Changed()
	if !w.Changed() {
		t.Error("the file that was missing went unnoticed")
	}
	if _, err := Load(path, env(nil), nil); err != nil {
		t.Error(err)
	}
}
