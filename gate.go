package analytics

import (
	"context"
	"time"
)

// A gate blocks the requests of a client during a pause that the collector has asked for.
// The queue's mutex guards it.
type gate struct {
	q     *queue
	until time.Time // the end of the pause; zero if there is none
	timer *time.Timer
}

func (g *gate) isClosed() bool { return !g.until.IsZero() }

// pause closes the gate for d from now. It never shortens a pause that is under way.
func (g *gate) pause(d time.Duration) {
	g.q.lock()
	defer g.q.unlock()
	g.close(d)
}

// close is pause for callers that hold q.mu.
func (g *gate) close(d time.Duration) {
	until := time.Now().Add(d)
	if g.q.ctx.Err() != nil || !until.After(g.until) {
		return
	}
	g.until = until
	if g.timer == nil {
		g.timer = time.AfterFunc(d, g.resume)
	} else {
		g.timer.Reset(d)
	}
}

// resume opens the gate at the end of the pause.
func (g *gate) resume() {
	g.q.lock()
	defer g.q.unlock()
	if !time.Now().Before(g.until) { // otherwise the pause was extended
		g.open()
	}
}

// open ends the pause. q.mu must be held.
func (g *gate) open() {
	g.until = time.Time{}
	g.q.dispatch()
}

// pass waits until the gate is open or ctx ends. It returns the cause of ctx, or nil.
func (g *gate) pass(ctx context.Context) error {
	for {
		g.q.lock()
		wait := time.Until(g.until)
		g.q.unlock()
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
