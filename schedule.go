package analytics

import (
	"math/rand/v2"
	"time"

	"github.com/segmentio/backo-go"
)

// The waits between the attempts of one batch. The longest wait starts at half a second and
// doubles, up to a minute. The actual wait is a random part of it, so that clients that
// failed together do not retry together.
const (
	maxRetries = 10
	maxBackoff = time.Minute
)

// The jitter of backo is off: backo adds it before the cap, so it disappears for the
// longest waits, where it matters most.
var exponential = backo.NewBacko(500*time.Millisecond, 2, 0, maxBackoff)

// backoffLimit returns the longest wait after an attempt, which is counted from 0.
func backoffLimit(attempt int) time.Duration {
	const last = 16 // large enough to reach maxBackoff, small enough not to overflow
	return exponential.Duration(min(max(attempt, 0), last))
}

func backoff(attempt int) time.Duration { return rand.N(backoffLimit(attempt)) }
