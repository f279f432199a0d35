package analytics

import (
	"context"
	"time"
)

// A throttle blocks the requests of a client during a pause that the collector has asked for.
// The queue's mutex guards it.
type throttle struct {
	q     *queue
	until time.Time // the end of the pause; zero if there is none
	timer *time.Timer
}

func (t *throttle) isClosed() bool { return !t.until.IsZero() }

// pause closes the throttle for d from now. It never shortens a pause that is under way.
func (t *throttle) pause(d time.Duration) {
	t.q.lock()
	defer t.q.unlock()
	t.close(d)
}

// close is pause for callers that hold q.mu.
func (t *throttle) close(d time.Duration) {
	until := time.Now().Add(d)
	if t.q.ctx.Err() != nil || !until.After(t.until) {
		return
	}
	t.until = until
	if t.timer == nil {
		t.timer = time.AfterFunc(d, t.resume)
	} else {
		t.timer.Reset(d)
	}
}

// resume opens the throttle at the end of the pause.
func (t *throttle) resume() {
	t.q.lock()
	defer t.q.unlock()
	if !time.Now().Before(t.until) { // otherwise the pause was extended
		t.open()
	}
}

// open ends the pause. q.mu must be held.
func (t *throttle) open() {
	t.until = time.Time{}
	t.q.dispatch()
}

// pass waits until the throttle is open or ctx ends. It returns the cause of ctx, or nil.
func (t *throttle) pass(ctx context.Context) error {
	for {
		t.q.lock()
		wait := time.Until(t.until)
		t.q.unlock()
		if wait <= 0 {
			return context.Cause(ctx)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
