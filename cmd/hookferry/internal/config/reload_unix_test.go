//go:build unix

package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestWatchNoticesChangedLinks changes the target of a symbolic link, as Kubernetes does.
func TestWatchNoticesChangedLinks(t *testing.T) {
	dir := t.TempDir()
	for _, v := range []string{"v1", "v2"} {
		if err := os.Mkdir(filepath.Join(dir, v), 0o700); err != nil {
			t.Fatal(err)
		}
		replace(t, filepath.Join(dir, v, "hookferry.yaml"), strings.Replace(minimal, "k1", `"file:key"`, 1))
		replace(t, filepath.Join(dir, v, "key"), "k1")
	}
	link := func(to string) {
		if err := os.Symlink(to, filepath.Join(dir, "new")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, "current")); err != nil {
			t.Fatal(err)
		}
	}
	link("v1")
	watchChange(t, filepath.Join(dir, "current", "hookferry.yaml"), func() { link("v2") }, true)
}
