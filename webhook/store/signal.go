package store

// A Signal wakes a goroutine that waits for it by receiving. It has room for one value, so several
// calls of Set while nobody waits are like one. It may be used concurrently.
type Signal chan struct{}

// NewSignal returns a Signal that is not set.
func NewSignal() Signal { return make(Signal, 1) }

// Set wakes the goroutine that waits for s, or the next one that will. It never blocks.
func (s Signal) Set() {
	select {
	case s <- struct{}{}:
	default:
	}
}
