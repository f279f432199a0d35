package analytics

import (
	"context"
	"time"
)

// A gate holds up the requests of the whole client while the collector has
// asked for a pause. The Client's mutex guards it.
type gate struct {
	until time.Time // the end of the pause; zero when there is none
	timer *time.Timer
}

func (g *gate) isClosed() bool { return !g.until.IsZero() }

// pause closes the gate for d, unless it is closed for longer.
func (c *Client) pause(d time.Duration) {
	c.lock()
	defer c.unlock()
	c.closeGate(d)
}

// closeGate is pause for callers that hold c.mu.
func (c *Client) closeGate(d time.Duration) {
	g := &c.gate
	until := time.Now().Add(d)
	if c.ctx.Err() != nil || !until.After(g.until) {
		return
	}
	g.until = until
	if g.timer == nil {
		g.timer = time.AfterFunc(d, c.resume)
	} else {
		g.timer.Reset(d)
	}
}

// resume opens the gate at the end of the pause.
func (c *Client) resume() {
	c.lock()
	defer c.unlock()
	if !time.Now().Before(c.gate.until) { // else it was extended meanwhile
		c.openGate()
	}
}

// openGate lets everybody through. c.mu is held.
func (c *Client) openGate() {
	c.gate.until = time.Time{}
	c.dispatch()
}

// passGate waits for the gate to be open, or for the end of ctx, whose cause it returns.
func (c *Client) passGate(ctx context.Context) error {
	for {
		c.lock()
		wait := time.Until(c.gate.until)
		c.unlock()
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
