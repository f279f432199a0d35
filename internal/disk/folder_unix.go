//go:build unix

package disk

import (
	"errors"
	"os"
	"syscall"
)

// SyncFolder makes all changes to the names of the files in a folder survive a loss of power. It
// does nothing on file systems that cannot sync folders.
func SyncFolder(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	err = f.Sync()
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOTSUP) {
		return nil
	}
	return err
}
