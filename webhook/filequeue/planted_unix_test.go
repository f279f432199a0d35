//go:build unix

package filequeue_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hookferry/analytics/webhook/filequeue"
	"github.com/hookferry/analytics/webhook/store"
)

// Somebody has put a symbolic link into the folder, before its first use or later. The store refuses the
// folder, says what to do, and does not touch the file behind the link.
func TestPlantedLink(t *testing.T) {
	use := func(dir string) error {
		s, err := filequeue.Open(dir, filequeue.Config{Logger: quiet})
		if err != nil {
			return err
		}
		defer s.Close()
		put := store.Put{Delivery: store.Delivery{Destination: "a", ID: "1", Due: s.Now()}}
		return s.Put(t.Context(), []store.Put{put}, make([]store.Result, 1))
	}
	precious := bytes.Repeat([]byte("precious "), 3000)
	for _, name := range []string{"MANIFEST", "lock", "next", "reserve", "roster.db"} {
		for _, used := range []bool{false, true} {
			dir, victim := t.TempDir(), filepath.Join(t.TempDir(), "victim")
			if used {
				if err := use(dir); err != nil {
					t.Fatal(err)
				}
				os.Remove(filepath.Join(dir, name))
			}
			if err := os.WriteFile(victim, precious, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(victim, filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
			if err := use(dir); err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "symbolic link") {
				t.Errorf("%s, used %v: Open = %v, want an error that names the symbolic link", name, used, err)
			}
			if b, err := os.ReadFile(victim); err != nil || !bytes.Equal(b, precious) {
				t.Errorf("%s, used %v: the file behind the link has %d bytes, %v; want it unchanged", name, used, len(b), err)
			}
		}
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := use(dir); err == nil || !strings.Contains(err.Error(), "chmod") {
		t.Errorf("Open of a folder to which all users can write = %v, want an error that says what to do", err)
	}
}
