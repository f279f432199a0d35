//go:build freebsd || dragonfly

package disktest

import "syscall"

func setCur(l *syscall.Rlimit, max uint64) { l.Cur = min(int64(max), l.Max) }
