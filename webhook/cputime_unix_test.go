//go:build unix

package webhook_test

import (
	"syscall"
	"testing"
	"time"
)

// cpuTime returns the processor time that this process has used, in its own code and in the kernel.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	must(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
