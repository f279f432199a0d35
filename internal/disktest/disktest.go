//go:build unix

// Package disktest makes disks full and files scarce, for tests of packages that use them.
package disktest

import (
	"os/signal"
	"syscall"
)

// Limit returns a function that keeps the process from making files of more than max bytes, which
// looks like a full disk, and a function that ends this. Any user may do so.
func Limit(max uint64) (fill, free func() error) {
	return func() error {
		signal.Ignore(syscall.SIGXFSZ) // the write fails anyway
		return limitFiles(max)
	}, func() error { return limitFiles(1 << 40) }
}

func limitFiles(max uint64) error {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &l); err != nil {
		return err
	}
	setCur(&l, max)
	return syscall.Setrlimit(syscall.RLIMIT_FSIZE, &l)
}

// NoFiles keeps the process from opening files until again is called.
func NoFiles() (again func() error, err error) {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return nil, err
	}
	before := l
	l.Cur = 0
	return func() error { return syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before) }, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &l)
}
