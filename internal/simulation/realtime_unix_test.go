//go:build unix

package simulation

import (
	"syscall"
	"time"
)

// realTime returns the time of the machine's clock. In a bubble, time.Now returns another time.
func realTime() time.Duration {
	var t syscall.Timeval
	if syscall.Gettimeofday(&t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}
