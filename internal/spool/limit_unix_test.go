//go:build unix && !freebsd && !dragonfly

package spool_test

import "syscall"

func setLimit(l *syscall.Rlimit, max uint64) { l.Cur = min(max, l.Max) }
