package spool_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/hookferry/analytics/internal/spool"
)

// TestAMemoryFaultIsReturnedAsAnError removes the pages under a mapping. A disk that fails has the
// same effect, and so has a file system that lacks the space it has reserved.
func TestAMemoryFaultIsReturnedAsAnError(t *testing.T) {
	if !spool.CanMap {
		return // without mappings there are no faults
	}
	path := t.TempDir()
	c := small()
	c.Sync = spool.SyncEach
	d, _ := open(t, path, c)
	s := newSegment(t, d, "1", "2")
	name := files(t, path)[0]
	if err := os.Truncate(filepath.Join(path, name), 0); err != nil {
		t.Fatal(err)
	}
	if !s.Fits(1) {
		t.Fatal("Fits(1) = false before the fault")
	}
	for range 2 {
		if err := s.Append([]byte("3"), 0); !errors.Is(err, spool.ErrFault) {
			t.Errorf("Append = %v, want %v", err, spool.ErrFault)
		}
		if s.Fits(1) {
			t.Error("Fits(1) = true after a fault")
		}
	}
	equal(t, "Len", s.Len(), 2)
	if n, err := s.ReadAt(make([]byte, 2), 0); n != 0 || !errors.Is(err, spool.ErrFault) {
		t.Errorf("ReadAt = %d, %v, want %v", n, err, spool.ErrFault)
	}
	for range 2 {
		if err := s.Commit(1); !errors.Is(err, spool.ErrFault) {
			t.Errorf("Commit = %v, want %v", err, spool.ErrFault)
		}
	}
	remove(t, s)
	equal(t, "files", files(t, path), []string(nil))

	// A spare file that causes a fault is removed, not reused.
	spare := newSegment(t, d, "1")
	name = files(t, path)[0]
	remove(t, spare)
	if err := os.Truncate(filepath.Join(path, name), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := d.New(idA, start); !errors.Is(err, spool.ErrFault) {
		t.Errorf("New = %v, want %v", err, spool.ErrFault)
	}
	equal(t, "Used", d.Used(), int64(0))
	s = newSegment(t, d, "1")
	equal(t, "Bytes", string(s.Bytes()), "[1")
}

// Guard turns memory faults into errors, but no other panics.
func TestOtherPanicsAreNotRecovered(t *testing.T) {
	tests := []struct {
		name string
		do   func() error
	}{
		{"panic", func() error { panic("no fault") }},
		{"nil pointer", func() error { var s *spool.Segment; _ = s.Len(); return nil }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("Guard recovered the panic, want it to go on")
				}
			}()
			err := spool.Guard(make([]byte, 1), tt.do)
			t.Errorf("Guard = %v, want a panic", err)
		})
	}
}
