package spool

import (
	"os"
	"syscall"
)

// syncMapping returns when the content of the mapping is on the disk. The dirty pages of a
// mapping are pages of the file, so msync is not needed.
func syncMapping(f *os.File, _ []byte) error {
	for {
		err := syscall.Fdatasync(int(f.Fd()))
		if err != syscall.EINTR {
			return os.NewSyscallError("fdatasync", err)
		}
	}
}
