package webhook

import (
	"sync"
	"sync/atomic"
	"time"
)

// A logState keeps a destination that always fails from filling the log: at
// most one line each second, which says how many it stands for.
type logState struct {
	failing atomic.Bool

	mu   sync.Mutex
	last time.Time
	held int
}

// failed notes a failure. It returns whether to log it, and how many were not
// logged since the last line.
func (s *logState) failed(now time.Time) (log bool, held int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failing.Store(true)
	if now.Sub(s.last) < time.Second {
		s.held++
		return false, 0
	}
	held, s.held, s.last = s.held, 0, now
	return true, held
}

// recovered notes a success and reports whether to log that it ends a row of
// failures.
func (s *logState) recovered() bool {
	if !s.failing.Load() { // as after nearly every delivery
		return false
	}
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.failing.Load() || now.Sub(s.last) < time.Second {
		return false
	}
	s.failing.Store(false)
	s.last = now
	return true
}
