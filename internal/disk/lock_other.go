//go:build !(linux || darwin || freebsd || dragonfly || netbsd || openbsd || illumos || windows)

package disk

import (
	"errors"
	"fmt"
	"os"
)

// LockFile always fails. This system has no file lock that the kernel releases when a process ends,
// so two processes could use the same folder at once.
func LockFile(string) (*os.File, error) {
	return nil, fmt.Errorf("no file locks on this system: %w", errors.ErrUnsupported)
}
