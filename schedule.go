package analytics

import (
	"time"

	"github.com/hookferry/analytics/internal/random"
	"github.com/segmentio/backo-go"
)

// The waits between the attempts of one batch. The upper bound of a wait starts at half a
// second and doubles with each attempt, up to a minute. The wait itself is a random time
// below that bound, so that clients that failed together do not retry together.
const (
	maxRetries = 10
	maxBackoff = time.Minute
)

// exponential computes the upper bounds of the waits. Its third argument, 0, turns the
// jitter of backo off, because the function backoff adds jitter. backo would add jitter
// before it caps the wait at maxBackoff. So the longest waits, which need jitter most,
// would have none.
var exponential = backo.NewBacko(500*time.Millisecond, 2, 0, maxBackoff)

// backoffLimit returns the longest wait after an attempt. The first attempt has number 0.
func backoffLimit(attempt int) time.Duration {
	const last = 16 // large enough to reach maxBackoff, small enough not to overflow
	return exponential.Duration(min(max(attempt, 0), last))
}

func backoff(attempt int) time.Duration { return random.N(backoffLimit(attempt)) }
