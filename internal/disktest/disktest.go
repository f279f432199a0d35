//go:build unix

// Package disktest simulates full disks and a lack of file descriptors, for tests of packages that
// use files.
package disktest

import (
	"os/signal"
	"syscall"
)

// Limit returns two functions. The function fill keeps the process from making files of more than
// max bytes, which looks to the process like a full disk. The function free removes that limit.
// Neither function needs privileges.
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

// NoFiles keeps the process from opening files, until the process calls the returned function.
func NoFiles() (again func() error, err error) {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return nil, err
	}
	before := l
	l.Cur = 0
	return func() error { return syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before) }, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &l)
}
