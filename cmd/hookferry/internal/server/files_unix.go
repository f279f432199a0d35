//go:build unix

package server

import "syscall"

// fileLimit returns how many files the process may have open. The runtime has
// raised that as far as it may.
func fileLimit() (n uint64, known bool) {
	var l syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l) != nil {
		return 0, false
	}
	return uint64(l.Cur), true // of type int64 on some systems
}
