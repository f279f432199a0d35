package spool

import (
	"os"
	"syscall"
)

// syncMapping returns when the file is on the disk as it is in memory. Dirty
// pages of a mapping are those of the file, so there is no need of msync.
func syncMapping(f *os.File, _ []byte) error {
	for {
		err := syscall.Fdatasync(int(f.Fd()))
		if err != syscall.EINTR {
			return os.NewSyscallError("fdatasync", err)
		}
	}
}
