package disk_test

import (
	"bytes"
	"errors"
	"io/fs"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/internal/disk"
	"github.com/hookferry/analytics/internal/simdisk"
)

// A simulated disk returns the same results as a folder of the file system.
func TestSimulatedDiskBehavesLikeAFolder(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) disk.Disk{
		"folder":    func(t *testing.T) disk.Disk { return disk.Folder(t.TempDir()) },
		"simulated": func(*testing.T) disk.Disk { return simdisk.New(1) },
	} {
		t.Run(name, func(t *testing.T) { testDisk(t, open(t)) })
	}
}

func testDisk(t *testing.T, d disk.Disk) {
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := d.Open("a"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Open of a file that does not exist: %v, want ErrNotExist", err)
	}
	f, err := d.Create("a")
	must(err)
	if _, err := d.Create("a"); !errors.Is(err, fs.ErrExist) {
		t.Errorf("Create of a file that exists: %v, want ErrExist", err)
	}
	_, err = f.WriteAt([]byte("hello"), 3)
	must(err)
	must(f.Sync())
	must(d.SyncNames())
	got := make([]byte, 20)
	if n, err := f.ReadAt(got, 1); n != 7 || err == nil || !bytes.Equal(got[:n], []byte("\x00\x00hello")) {
		t.Errorf("ReadAt = %q, %v, want 7 bytes and an error", got[:n], err)
	}
	must(f.Truncate(4))
	if size, err := f.Size(); size != 4 || err != nil {
		t.Errorf("Size = %d, %v, want 4, nil", size, err)
	}
	must(d.Rename("a", "b"))
	if err := f.Is("a"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Is of the name before Rename: %v, want ErrNotExist", err)
	}
	must(f.Is("b"))
	other, err := d.Create("a")
	must(err)
	if err := f.Is("a"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Is of the name of another file: %v, want ErrNotExist", err)
	}
	must(other.Close())
	l, err := d.Lock("lock")
	must(err)
	if _, err := d.Lock("lock"); !errors.Is(err, disk.ErrLocked) {
		t.Errorf("Lock of a locked file: %v, want ErrLocked", err)
	}
	must(l.Close())
	l, err = d.Lock("lock")
	must(err)
	must(l.Close())
	files, err := d.List()
	if diff := cmp.Diff([]disk.Info{{Name: "a"}, {Name: "b", Size: 4}, {Name: "lock"}}, files); err != nil || diff != "" {
		t.Errorf("List: %v (-want +got)\n%s", err, diff)
	}
	must(d.Remove("b"))
	if n, err := f.ReadAt(got[:4], 0); n != 4 || err != nil {
		t.Errorf("ReadAt of a removed file = %d, %v, want 4, nil", n, err)
	}
	must(f.Close())
	if _, err := disk.Folder(filepath.Join(t.TempDir(), "none")).List(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("List of a folder that does not exist: %v, want ErrNotExist", err)
	}
}
