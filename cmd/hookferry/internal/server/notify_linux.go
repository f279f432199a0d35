package server

import (
	"time"

	"golang.org/x/sys/unix"
)

// monotonic returns the time of the clock that systemd compares with.
func monotonic() (time.Duration, bool) {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) != nil {
		return 0, false
	}
	return time.Duration(t.Nano()), true
}
