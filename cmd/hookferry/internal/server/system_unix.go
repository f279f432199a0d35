//go:build linux || darwin || freebsd

package server

import "syscall"

// diskFree returns how many bytes this process can still write to the disk of a folder.
func diskFree(folder string) (int64, error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(folder, &s); err != nil {
		return 0, err
	}
	return int64(s.Bavail) * int64(s.Bsize), nil // their types differ by system
}

// fileLimit returns how many files the process may have open. The Go runtime has already raised
// this limit as far as the system allows.
func fileLimit() (n uint64, known bool) {
	var l syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l) != nil {
		return 0, false
	}
	return uint64(l.Cur), true // its type differs by system
}
