package analytics

import (
	"math/rand/v2"
	"time"

	"github.com/segmentio/backo-go"
)

// The waits between the attempts of one batch: half a second, doubling, at most
// a minute, and of that a random part, so that clients which failed together
// do not come back together.
const (
	maxRetries = 10
	maxBackoff = time.Minute
)

// The jitter of backo is off: it is added before the cap, so it vanishes when
// it matters most.
var exponential = backo.NewBacko(500*time.Millisecond, 2, 0, maxBackoff)

// backoffLimit is the longest wait after the attempt of that number, counted
// from 0.
func backoffLimit(attempt int) time.Duration {
	const last = 16 // far above the cap, far below what overflows
	return exponential.Duration(min(max(attempt, 0), last))
}

func backoff(attempt int) time.Duration { return rand.N(backoffLimit(attempt)) }
