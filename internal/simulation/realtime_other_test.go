//go:build !unix

package simulation

import "time"

// realTime returns 0: the real time is not known.
func realTime() time.Duration { return 0 }
