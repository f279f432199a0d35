//go:build linux || darwin || freebsd || dragonfly

package spool

import (
	"os"
	"syscall"
)

// canMap says that what is written to a shared mapping is in the file, for all
// who read it, at once and however the process ends. On OpenBSD it is not, and
// the syscall package does not map on Windows.
const canMap = true

func mapFile(f *os.File, size int) ([]byte, error) {
	memory, err := syscall.Mmap(int(f.Fd()), 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	return memory, os.NewSyscallError("mmap", err)
}

func unmap(memory []byte) error { return os.NewSyscallError("munmap", syscall.Munmap(memory)) }
