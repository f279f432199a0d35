//go:build unix

package disk

import (
	"errors"
	"os"
	"syscall"
)

// SyncFolder returns when the names in a folder are on the disk, on file systems where
// folders can be synced.
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
