package webhook

import (
	"log/slog"
	"time"
)

// A storeBackoff makes the callers of a failing store wait longer after each failure.
type storeBackoff struct {
	pause time.Duration // zero: the latest call succeeded
}

const shortestPause = 50 * time.Millisecond

const longestPause = 5 * time.Second

// failed records a failure, and reports whether it is the first in a row.
func (o *storeBackoff) failed() bool {
	first := o.pause == 0
	o.pause = min(max(2*o.pause, shortestPause), longestPause)
	return first
}

// over records a success, and logs the first one after failures.
func (o *storeBackoff) over(logger *slog.Logger) {
	if o.pause > 0 {
		logger.Info("webhook: the store works again")
	}
	o.pause = 0
}
