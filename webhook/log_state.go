package webhook

import (
	"sync"
	"time"
)

// A logState lets at most one line a second of a failing destination pass, and counts the others.
type logState struct {
	mu       sync.Mutex
	failing  bool
	last     time.Time // when a line was logged
	unlogged int
}

// failed records a failure. It reports whether to log it, and how many lines were left out.
func (s *logState) failed() (log bool, unlogged int) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failing = true
	if now.Sub(s.last) < time.Second {
		s.unlogged++
		return false, 0
	}
	unlogged, s.unlogged, s.last = s.unlogged, 0, now
	return true, unlogged
}

// recovered records a success. It reports whether to log that a series of failures has ended.
func (s *logState) recovered() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.failing || time.Since(s.last) < time.Second {
		return false
	}
	s.failing, s.last = false, time.Now()
	return true
}
