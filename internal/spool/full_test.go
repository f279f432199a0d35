//go:build unix

package spool_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/hookferry/analytics/internal/disktest"
	"github.com/hookferry/analytics/internal/soakenv"
	"github.com/hookferry/analytics/internal/spool"
)

// fullMount is an environment variable. If it is set, the child process mounts a small file
// system of its own.
const fullMount = "SPOOL_TEST_MOUNT"

// fullChild is the child process "full". For both kinds of files, it runs checkFullDisk on a disk
// that it can fill.
func fullChild() error {
	path := os.Getenv(childFolder)
	for _, plain := range []bool{false, true} {
		fill, free := disktest.Limit(100 << 10)
		if os.Getenv(fullMount) != "" {
			var err error
			if fill, free, err = disktest.Mount(path, "1200k"); err != nil { // space for two segments, but not for three
				return err
			}
		}
		c := full
		if plain {
			spool.Plain(&c)
		}
		if err := checkFullDisk(filepath.Join(path, fmt.Sprint(plain)), c, fill, free); err != nil {
			return fmt.Errorf("without mapping: %t: %w", plain, err)
		}
	}
	return nil
}

// checkFullDisk makes a segment and fills the disk. It checks that no further segment can be made,
// that the existing segment accepts messages up to its size, and that Open finds them later.
func checkFullDisk(path string, c spool.Config, fill, free func() error) error {
	dir, _, err := spool.Open(path, c)
	if err != nil {
		return err
	}
	s, err := dir.New(idA, start)
	if err != nil {
		return err
	}
	if err := fill(); err != nil {
		return err
	}
	for range 3 {
		_, err := dir.New(idA, start)
		if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EFBIG) {
			return fmt.Errorf("New on a full disk = %w, want ENOSPC or EFBIG", err)
		}
		if list, err := os.ReadDir(path); err != nil || len(list) != 2 { // the lock file and s
			return fmt.Errorf("%d files after New on a full disk, %w, want 2", len(list), err)
		}
	}
	message := bytes.Repeat([]byte{'m'}, 450)
	n := 0
	for ; s.Fits(len(message)); n++ {
		err := s.Append(message, spool.Checksum(message))
		if spool.IsPlain(c) && errors.Is(err, syscall.EFBIG) && n > 0 {
			break // the limit on the size of files also applies to writes
		}
		if err != nil {
			return fmt.Errorf("Append on a full disk: %w", err)
		}
	}
	if err := s.Unload(); err != nil {
		return err
	}
	if err := free(); err != nil {
		return err
	}
	other, err := dir.New(idA, start)
	if err != nil {
		return fmt.Errorf("New with room again: %w", err)
	}
	if err := other.Remove(); err != nil {
		return err
	}
	if err := dir.Close(); err != nil {
		return err
	}
	dir, backlog, err := spool.Open(path, c)
	if err != nil || len(backlog) != 1 {
		return fmt.Errorf("Open = %d segments, %w, want 1", len(backlog), err)
	}
	if lost, err := backlog[0].Load(); lost != 0 || err != nil || backlog[0].Len() != n {
		return fmt.Errorf("Load = %d, %w, has %d messages, want %d and none lost", lost, err, backlog[0].Len(), n)
	}
	if err := backlog[0].Remove(); err != nil {
		return err
	}
	return dir.Close()
}

// If the process has too many open files, Load fails, but the segment does not count as damaged
// and can be loaded later.
func TestLoadSucceedsOnceFewerFilesAreOpen(t *testing.T) {
	d, _ := open(t, t.TempDir(), small())
	s := newSegment(t, d, "0", "1")
	if err := s.Unload(); err != nil {
		t.Fatal(err)
	}
	again, err := disktest.NoFiles()
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Load()
	if e := again(); e != nil {
		t.Fatal(e)
	}
	if damage := (*spool.DamageError)(nil); errors.As(err, &damage) || !errors.Is(err, syscall.EMFILE) {
		t.Errorf("Load = %v, want EMFILE", err)
	}
	load(t, s)
	equal(t, "messages", messages(s, small().Head), []string{"0", "1"})
	remove(t, s)
}

// TestFileLimit runs a process that reaches the limit on the size of its files. To the process
// this looks like a full disk.
func TestFileLimit(t *testing.T) {
	soakenv.Long(t, "spool-disk")
	if out, err := child("full", t.TempDir()).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
