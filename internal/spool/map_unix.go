//go:build linux || darwin || freebsd || dragonfly

package spool

import (
	"os"
	"syscall"
)

// canMap is true on systems where all readers of a file see a write to a shared mapping at
// once, and the write survives any end of the process. OpenBSD does not guarantee that, and
// the syscall package cannot map files on Windows.
const canMap = true

func mapFile(f *os.File, size int) ([]byte, error) {
	memory, err := syscall.Mmap(int(f.Fd()), 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	return memory, os.NewSyscallError("mmap", err)
}

func unmap(memory []byte) error { return os.NewSyscallError("munmap", syscall.Munmap(memory)) }
