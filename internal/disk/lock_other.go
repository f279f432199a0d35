//go:build !(linux || darwin || freebsd || dragonfly || netbsd || openbsd || illumos || windows)

package disk

import (
	"errors"
	"fmt"
	"os"
)

// LockFile fails: without a lock that the kernel undoes, two processes could
// send the same folder.
func LockFile(string) (*os.File, error) {
	return nil, fmt.Errorf("no file locks on this system: %w", errors.ErrUnsupported)
}
