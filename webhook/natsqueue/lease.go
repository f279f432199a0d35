package natsqueue

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// A lease says how long this node owns its partitions. Each heartbeat prolongs it.
type lease struct {
	claim time.Duration // Config.Claim

	mu     sync.Mutex
	until  time.Time // this node owns its partitions until then
	steady time.Time // all heartbeats since then were stored
	failed error     // the error of the latest heartbeat; nil if it was stored
}

// trusted is how long a node relies on its own heartbeat. It is shorter than Claim, so a node stops
// before other nodes take over.
func (l *lease) trusted() time.Duration { return l.claim * 9 / 10 }

// lapsed returns an error if the last heartbeat is so old, by the wall clock or by the monotonic
// clock, that other nodes may have taken over the partitions of this node.
func (l *lease) lapsed() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if !now.After(l.until) && !now.Round(0).After(l.until.Round(0)) {
		return nil
	}
	if l.failed != nil {
		return fmt.Errorf("natsqueue: lost ownership, the last heartbeat is too old: %w", l.failed)
	}
	return errors.New("natsqueue: lost ownership, the last heartbeat is too old")
}

// prolong takes note of a heartbeat that was sent at a time, and of its error.
func (l *lease) prolong(sent time.Time, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed = err; err != nil {
		return
	}
	last := l.until.Add(-l.trusted())
	if max(sent.Sub(last), sent.Round(0).Sub(last.Round(0))) > l.claim*2/3 { // a heartbeat was missed; see lapsed for the two clocks
		l.steady = sent
	}
	l.until = sent.Add(l.trusted())
}

// judges reports whether this node may call others dead: no node can store heartbeats while the
// servers are away, so it must have stored all of its own for at least Claim.
func (l *lease) judges() bool {
	if l.lapsed() != nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Since(l.steady) >= l.claim
}
