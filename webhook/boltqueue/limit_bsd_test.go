//go:build freebsd || dragonfly

package boltqueue_test

import "syscall"

func setLimit(l *syscall.Rlimit, max uint64) { l.Cur = min(int64(max), l.Max) }
