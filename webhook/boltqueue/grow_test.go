package boltqueue

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"testing"
)

// The errors are as bbolt makes them of those of the system.
func TestGrowErrorHasItsCause(t *testing.T) {
	truncate := func(errno syscall.Errno) error { return &fs.PathError{Op: "truncate", Path: "queue.db", Err: errno} }
	for _, tt := range []struct {
		name string
		err  error
		want syscall.Errno // 0 is none
	}{
		{"cannot grow", fmt.Errorf("file resize error: %s", truncate(syscall.ENOSPC)), syscall.ENOSPC},
		{"at its bound", fmt.Errorf("file resize error: %s", truncate(syscall.EFBIG)), syscall.EFBIG},
		{"cannot be synced", fmt.Errorf("file sync error: %s", truncate(syscall.ENOSPC)), syscall.ENOSPC},
		{"has its cause", truncate(syscall.ENOSPC), syscall.ENOSPC},
		{"another", fmt.Errorf("file resize error: %s", truncate(syscall.EIO)), 0},
	} {
		got := growError(tt.err)
		if got.Error() != tt.err.Error() || !errors.Is(got, tt.err) {
			t.Errorf("%s: growError(%v) = %v", tt.name, tt.err, got)
		}
		for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EFBIG} {
			want := errno == tt.want
			if errors.Is(got, errno) != want {
				t.Errorf("%s: growError(%v) is %v: %t", tt.name, tt.err, errno, !want)
			}
		}
	}
	if err := growError(nil); err != nil {
		t.Errorf("growError(nil) = %v", err)
	}
}
