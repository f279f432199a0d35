//go:build !(linux || darwin || freebsd || dragonfly || netbsd || openbsd || illumos || windows)

package spool

import (
	"errors"
	"fmt"
	"os"
)

// lockFile fails: without a lock that the kernel undoes, two processes could
// send the same folder.
func lockFile(string) (*os.File, error) {
	return nil, fmt.Errorf("no file locks on this system: %w", errors.ErrUnsupported)
}
