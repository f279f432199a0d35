package spool_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/hookferry/analytics/internal/spool"
)

// found opens a copy of a folder and returns the messages in it.
func found(t *testing.T, path string) (all []string) {
	t.Helper()
	other := t.TempDir()
	if err := os.CopyFS(other, os.DirFS(path)); err != nil {
		t.Fatal(err)
	}
	d, backlog := open(t, other, small())
	for _, s := range backlog {
		load(t, s)
		all = append(all, messages(s, small().Head)...)
		remove(t, s)
	}
	closeDir(t, d)
	return all
}

// Somebody deletes the folder. Check makes it again, and Restore writes the messages of open and of
// loaded segments to new files there, which Open finds. Spare files from before are not used.
func TestRestoreAfterTheFolderWasDeleted(t *testing.T) {
	for _, plain := range []bool{false, true} {
		path := filepath.Join(t.TempDir(), "spool")
		c := small()
		c.Sync = spool.SyncEach
		if plain {
			spool.Plain(&c)
		}
		var reported []error
		c.Report = func(err error) { reported = append(reported, err) }
		d, _ := open(t, path, c)
		loaded := newSegment(t, d, "1", "22")
		if err := loaded.Unload(); err != nil {
			t.Fatal(err)
		}
		load(t, loaded)
		waiting := newSegment(t, d, "333")
		if err := waiting.Unload(); err != nil {
			t.Fatal(err)
		}
		taking := newSegment(t, d, "4444", "55555")
		if err := d.Prepare(3); err != nil {
			t.Fatal(err)
		}
		if again, err := d.Check(); again || err != nil || taking.Lost() || taking.Restore() != nil {
			t.Fatalf("before: Check = %t, %v, Lost = %t, want nothing to do", again, err, taking.Lost())
		}
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}

		if err := taking.Commit(2); err != spool.ErrLost {
			t.Errorf("Commit = %v, want ErrLost", err)
		}
		if again, err := d.Check(); !again || err != nil || len(reported) != 1 {
			t.Errorf("Check = %t, %v, reported %v, want a new folder and one report", again, err, reported)
		}
		if again, err := d.Check(); again || err != nil {
			t.Errorf("second Check = %t, %v, want nothing to do", again, err)
		}
		for name, s := range map[string]*spool.Segment{"loaded": loaded, "taking": taking} {
			before, ends := string(s.Bytes()), len(s.Ends())
			if err := s.Restore(); err != nil || s.Lost() {
				t.Errorf("%s: Restore = %v, Lost = %t, want it restored", name, err, s.Lost())
			}
			if string(s.Bytes()) != before || len(s.Ends()) != ends {
				t.Errorf("%s: Bytes = %q, want %q", name, s.Bytes(), before)
			}
		}
		if err := waiting.Restore(); !errors.Is(err, spool.ErrLost) {
			t.Errorf("Restore of a segment on disk alone = %v, want ErrLost", err)
		}
		if err := taking.Commit(2); err != nil {
			t.Errorf("Commit after Restore: %v", err)
		}
		later := newSegment(t, d, "666666")
		got := found(t, path)
		if len(got) != 5 {
			t.Errorf("the folder has the messages %q, want 5", got)
		}
		for _, s := range []*spool.Segment{loaded, waiting, taking, later} {
			remove(t, s)
		}
		if got := found(t, path); len(got) != 0 {
			t.Errorf("the folder has the messages %q after Remove, want none", got)
		}
		equal(t, "used bytes", d.Used(), int64(0))
		closeDir(t, d)
	}
}

// Another process has the folder that somebody deleted. Its files are left alone, although they
// have the same names.
func TestFilesOfTheNextOwnerAreLeftAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "spool")
	c := small()
	c.Report = func(error) {}
	d, _ := open(t, path, c)
	waiting := newSegment(t, d, "1")
	if err := waiting.Unload(); err != nil {
		t.Fatal(err)
	}
	taking := newSegment(t, d, "2")
	if err := d.Prepare(2); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
	other, _ := open(t, path, small())
	for _, m := range []string{"a", "b", "c", "d"} {
		if err := newSegment(t, other, m).Unload(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := d.Check(); !errors.Is(err, spool.ErrLocked) {
		t.Errorf("Check = %v, want ErrLocked", err)
	}
	if err := taking.Restore(); !errors.Is(err, spool.ErrLocked) {
		t.Errorf("Restore = %v, want ErrLocked", err)
	}
	if _, err := d.New(idA, start); !errors.Is(err, spool.ErrLocked) {
		t.Errorf("New = %v, want ErrLocked", err)
	}
	if _, err := waiting.Load(); err == nil {
		t.Error("Load read the file of another process")
	}
	remove(t, waiting)
	remove(t, taking)
	closeDir(t, d)
	equal(t, "messages of the next owner", found(t, path), []string{"a", "b", "c", "d"})
	closeDir(t, other)
}
