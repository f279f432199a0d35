package spool

import (
	"os"
	"syscall"
)

// reserve sets the size of an empty file and reserves its space on the disk.
func reserve(f *os.File, size int64) error {
	for {
		switch err := syscall.Fallocate(int(f.Fd()), 0, 0, size); err {
		case syscall.EINTR:
		case syscall.EOPNOTSUPP, syscall.ENOSYS:
			return fill(f, size)
		default:
			return os.NewSyscallError("fallocate", err)
		}
	}
}
