package collector

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// health logs a recovery only after recoveryTime without a failure. Otherwise a full queue, which
// refuses one request and takes the next, would cause hundreds of log lines a second.
const recoveryTime = 10 * time.Second

// health logs when a part on which requests depend, such as the Forwarder, begins to fail, and when
// that part works again. So the log need not have a line for each refused request.
type health struct {
	logger   *slog.Logger
	fails    string // logged when the part begins to fail
	recovers string // logged when the part works again
	failed   atomic.Bool

	mu      sync.Mutex
	since   time.Time // the time of the first failure
	last    time.Time // the time of the latest failure
	refused int       // requests refused since the first failure
}

func (s *health) bad(err error) {
	now := time.Now()
	s.mu.Lock()
	first := !s.failed.Load()
	if first {
		s.since, s.refused = now, 0
		s.failed.Store(true)
	}
	s.last = now
	s.refused++
	s.mu.Unlock()
	if first {
		s.logger.Error(s.fails, "error", err)
	}
}

func (s *health) good() {
	if !s.failed.Load() {
		return
	}
	now := time.Now()
	s.mu.Lock()
	again := s.failed.Load() && now.Sub(s.last) >= recoveryTime
	if again {
		s.failed.Store(false)
	}
	after, refused := now.Sub(s.since), s.refused
	s.mu.Unlock()
	if again {
		s.logger.Info(s.recovers, "after", after, "refused", refused)
	}
}
