//go:build unix && !freebsd && !dragonfly

package disktest

import "syscall"

func setCur(l *syscall.Rlimit, max uint64) { l.Cur = min(max, l.Max) }
