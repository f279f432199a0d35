package step

import (
	"slices"
	"sync"
)

// A Script has the steps of a server, which takes one after the other. The last step is repeated
// forever. The zero Script answers 200 to everything. It may be used concurrently.
type Script struct {
	mu    sync.Mutex
	steps []Step
	taken int // how often steps[0] was taken
}

// Set replaces the rest of the script. Without steps, it answers 200 to everything.
func (s *Script) Set(steps ...Step) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.steps, s.taken = slices.Clone(steps), 0
}

// Next takes the next step.
func (s *Script) Next() Step {
	step, _ := s.NextIf(func(Step) bool { return true })
	return step
}

// NextIf takes the next step if want accepts it. Otherwise it takes nothing and returns false.
func (s *Script) NextIf(want func(Step) bool) (Step, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var step Step
	if len(s.steps) > 0 {
		step = s.steps[0]
	}
	if !want(step) {
		return Step{}, false
	}
	s.taken++
	if s.taken >= step.times && len(s.steps) > 1 {
		s.steps, s.taken = s.steps[1:], 0
	}
	return step, true
}
