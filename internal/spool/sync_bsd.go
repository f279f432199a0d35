//go:build darwin || freebsd || dragonfly

package spool

import (
	"os"
	"syscall"
	"unsafe"
)

// syncMapping returns when the content of the mapping is on the disk. On macOS, Sync also
// flushes the cache of the drive.
func syncMapping(f *os.File, memory []byte) error {
	start := unsafe.Pointer(unsafe.SliceData(memory))
	if _, _, errno := syscall.Syscall(syscall.SYS_MSYNC, uintptr(start), uintptr(len(memory)), syscall.MS_SYNC); errno != 0 {
		return os.NewSyscallError("msync", errno)
	}
	return f.Sync()
}
