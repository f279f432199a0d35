//go:build !linux

package server

import "time"

// monotonic is for systemd, which is not here.
func monotonic() (time.Duration, bool) { return 0, false }
