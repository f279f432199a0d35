//go:build unix

package simulation

import (
	"syscall"
	"time"
)

// realTime is the time by the machine's clock, which in a bubble time.Now is not.
func realTime() time.Duration {
	var t syscall.Timeval
	if syscall.Gettimeofday(&t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}
