package collector

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// recoveryTime is how long there must be no failure before health logs a recovery. A queue at
// its bound refuses one request and takes the next, and that is one failure, not hundreds
// of changes a second.
const recoveryTime = 10 * time.Second

// health logs when something that requests need begins to fail, and when it works again,
// instead of logging each request that is refused.
type health struct {
	logger   *slog.Logger
	fails    string // logged when it begins to fail
	recovers string // logged when it works again
	failed   atomic.Bool

	mu      sync.Mutex
	since   time.Time // the time of the first failure
	last    time.Time // the time of the latest failure
	refused int       // requests since then
}

// bad counts a request that was refused for err.
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

// good is called for each request for which it worked.
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
