//go:build !unix

package disk

import (
	"io/fs"
	"os"
)

// OpenFile opens a regular file, and no symbolic link.
func OpenFile(name string, flag int) (*os.File, error) {
	if info, err := os.Lstat(name); err == nil && !info.Mode().IsRegular() {
		err := errIrregular
		if info.Mode()&fs.ModeSymlink != 0 {
			err = errLink
		}
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return os.OpenFile(name, flag, 0o600)
}

// CheckFolder returns nil, because this system has no modes of folders.
func CheckFolder(string) error { return nil }
