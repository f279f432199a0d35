package analytics

import (
	"context"
	"time"
)

// A gate holds up the requests of the whole client while the collector has
// asked for a pause. The Client's mutex guards it.
type gate struct {
	until time.Time
	open  chan struct{} // closed when the pause ends; nil when there is none
	timer *time.Timer
}

func (g *gate) isClosed() bool { return g.open != nil }

// pause closes the gate for d, unless it is closed for longer.
func (c *Client) pause(d time.Duration) {
	c.lock()
	defer c.unlock()
	c.hold(d)
}

// hold is pause for callers that hold c.mu.
func (c *Client) hold(d time.Duration) {
	g := &c.gate
	until := time.Now().Add(d)
	if c.ctx.Err() != nil || g.isClosed() && !until.After(g.until) {
		return
	}
	g.until = until
	if g.open == nil {
		g.open = make(chan struct{})
	}
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
	if c.gate.isClosed() && time.Now().Before(c.gate.until) {
		return // extended while this was on its way
	}
	c.openGate()
}

// openGate lets everybody through. c.mu is held.
func (c *Client) openGate() {
	if c.gate.isClosed() {
		close(c.gate.open)
		c.gate.open = nil
	}
	c.dispatch()
}

// passGate waits for the gate to be open.
func (c *Client) passGate(ctx context.Context) error {
	for {
		c.lock()
		open := c.gate.open
		c.unlock()
		if open == nil {
			return context.Cause(ctx)
		}
		select {
		case <-open:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
