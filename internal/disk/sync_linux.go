package disk

import (
	"os"
	"syscall"
)

// syncData returns when the bytes of f, and the size needed to read them, are on the disk.
func syncData(f *os.File) error {
	for {
		err := syscall.Fdatasync(int(f.Fd()))
		if err != syscall.EINTR {
			return os.NewSyscallError("fdatasync", err)
		}
	}
}
