//go:build linux || darwin || freebsd

package server

import "syscall"

// diskFree returns the bytes that may still be written to the disk of a folder.
func diskFree(folder string) (int64, error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(folder, &s); err != nil {
		return 0, err
	}
	return int64(s.Bavail) * int64(s.Bsize), nil // of other types on some systems
}
