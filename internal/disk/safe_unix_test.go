//go:build unix

package disk_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hookferry/analytics/internal/disk"
)

// A folder does not follow a symbolic link, and does not wait for a pipe. The errors say what to do.
func TestFolderFollowsNoLink(t *testing.T) {
	dir, victim := t.TempDir(), filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(victim, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := disk.Folder(dir)
	for name, to := range map[string]string{"link": victim, "dangling": victim + "-none"} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		_, err := d.Open(name)
		_, lerr := d.Lock(name)
		for _, err := range []error{err, lerr} {
			if err == nil || errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "symbolic link") || !strings.Contains(err.Error(), "remove it") {
				t.Errorf("%s: %v, want an error that says to remove the symbolic link", name, err)
			}
		}
		if _, err := d.Create(name); !errors.Is(err, fs.ErrExist) {
			t.Errorf("Create of %s: %v, want ErrExist", name, err)
		}
	}
	if _, err := os.Stat(victim + "-none"); err == nil {
		t.Error("a file was made behind a link, want none")
	}
	if _, err := d.List(); err == nil || !strings.Contains(err.Error(), "symbolic link") {
		t.Errorf("List with a symbolic link: %v, want an error about it", err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Open("pipe"); err == nil || !strings.Contains(err.Error(), "regular") {
		t.Errorf("Open of a pipe: %v, want an error", err)
	}
	f, err := d.Create("file")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := os.Rename(filepath.Join(dir, "file"), filepath.Join(dir, "moved")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("moved", filepath.Join(dir, "file")); err != nil {
		t.Fatal(err)
	}
	if err := f.Is("file"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Is of a link to the file: %v, want ErrNotExist", err)
	}
}

// A folder that others can write to, or that belongs to somebody else, is refused, and the error
// says what to do.
func TestCheckFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "folder")
	const other = 54321 // no user and no group of this process
	for _, tt := range []struct {
		mode     fs.FileMode
		uid, gid int // -1 for those of this process
		want     string
	}{
		{0o700, -1, -1, ""},
		{0o755, -1, -1, ""},
		{0o770, -1, -1, ""},
		{0o757, -1, -1, "chmod go-w " + dir},
		{0o777 | fs.ModeSticky, -1, -1, "chmod go-w " + dir},
		{0o770 | fs.ModeSetgid, -1, other, ""},
		{0o770, -1, other, "chmod g-w " + dir},
		{0o700, other, -1, "belongs to user 54321"},
	} {
		if os.Geteuid() != 0 && (tt.uid == other || tt.gid == other) {
			continue // only root can give a folder away
		}
		if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700), os.Chown(dir, tt.uid, tt.gid), os.Chmod(dir, tt.mode)); err != nil {
			t.Fatal(err)
		}
		if err := disk.CheckFolder(dir); tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("CheckFolder of a folder with %v, user %d, group %d = %v; want %q", tt.mode, tt.uid, tt.gid, err, tt.want)
		}
	}
	if err := disk.CheckFolder(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("CheckFolder of no folder = %v, want ErrNotExist", err)
	}
}
