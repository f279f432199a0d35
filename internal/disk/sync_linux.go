package disk

import (
	"os"
	"syscall"
)

// SyncData makes the bytes of f, and the size needed to read them, survive a loss of power.
func SyncData(f *os.File) error {
	for {
		err := syscall.Fdatasync(int(f.Fd()))
		if err != syscall.EINTR {
			return os.NewSyscallError("fdatasync", err)
		}
	}
}
