//go:build unix

package spool

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Somebody has put symbolic links into the folder. Open refuses a link in place of the lock, sets a
// link aside that has the name of a segment, and does not touch the files behind the links. It
// refuses a folder to which all users can write.
func TestPlantedLink(t *testing.T) {
	victim := filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(victim, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := Config{MaxMessages: 10, MaxData: 1000}
	for name, want := range map[string]string{"lock": "symbolic link", fileName(1): ""} {
		dir := t.TempDir()
		if err := os.Symlink(victim, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		d, segments, err := Open(dir, c)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) || len(segments) > 0 {
			t.Errorf("Open with a link %s = %d segments, %v; want none, and %q", name, len(segments), err, want)
		}
		if err == nil {
			if err := d.Prepare(1); err != nil {
				t.Error(err)
			}
			d.Close()
		}
		if b, err := os.ReadFile(victim); err != nil || string(b) != "precious" {
			t.Errorf("%s: the file behind the link has %q, %v; want it unchanged", name, b, err)
		}
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Open(dir, c); err == nil || !strings.Contains(err.Error(), "chmod") {
		t.Errorf("Open of a folder to which all users can write = %v, want an error that says what to do", err)
	}
}
