//go:build unix

package fileroster

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Somebody has put a symbolic link in the place of the file. The roster refuses it, says why, and does
// not touch the file behind the link. It refuses a folder to which all users can write.
func TestPlantedLink(t *testing.T) {
	dir, victim := t.TempDir(), filepath.Join(t.TempDir(), "victim")
	precious := bytes.Repeat([]byte("precious "), 3000)
	if err := os.WriteFile(victim, precious, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(victim, filepath.Join(dir, "roster.db")); err != nil {
		t.Fatal(err)
	}
	r := openUnsynced(t, dir)
	defer r.Close()
	for _, err := range r.Audiences(t.Context()) {
		if err == nil || !strings.Contains(err.Error(), "symbolic link") {
			t.Errorf("Audiences behind a symbolic link yields %v, want an error that names the link", err)
		}
	}
	if err := Copy(dir, t.TempDir()); err == nil || !strings.Contains(err.Error(), "symbolic link") {
		t.Errorf("Copy of a symbolic link = %v, want an error that names the link", err)
	}
	if b, err := os.ReadFile(victim); err != nil || !bytes.Equal(b, precious) {
		t.Errorf("the file behind the link has %d bytes, %v; want it unchanged", len(b), err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "chmod") {
		t.Errorf("Open of a folder to which all users can write = %v, want an error that says what to do", err)
	}
}
