//go:build unix && !freebsd && !dragonfly

package boltqueue_test

import "syscall"

func setLimit(l *syscall.Rlimit, max uint64) { l.Cur = min(max, l.Max) }
