package collector

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// settled is how long something has to work without a failure before it counts
// as good again. A queue at its bound refuses one request and takes the next, which
// is one state, not hundreds of changes a second.
const settled = 10 * time.Second

// health notes whether something that requests need works, and logs when that
// changes: not for every request that is refused.
type health struct {
	logger   *slog.Logger
	fails    string // what to log when it fails
	recovers string // and when it works again
	failed   atomic.Bool

	mu      sync.Mutex
	since   time.Time // of the first failure
	last    time.Time // failure
	refused int       // requests
}

// bad notes that a request was refused for err.
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

// good notes that it worked for a request.
func (s *health) good() {
	if !s.failed.Load() {
		return
	}
	now := time.Now()
	s.mu.Lock()
	again := s.failed.Load() && now.Sub(s.last) >= settled
	if again {
		s.failed.Store(false)
	}
	after, refused := now.Sub(s.since), s.refused
	s.mu.Unlock()
	if again {
		s.logger.Info(s.recovers, "after", after, "refused", refused)
	}
}
