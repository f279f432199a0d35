// Package calls has what stores on a server do alike about their calls and their process.
package calls

import (
	"context"
	"fmt"
	"os"
	"sync"

	"github.com/hookferry/analytics/webhook"
)

// A Gate lets calls of a store begin until it is closed. The zero value is open.
type Gate struct {
	mu     sync.Mutex
	closed bool
	inside sync.WaitGroup
}

// Enter begins a call, which Leave ends. It returns the error of a ctx that has ended,
// and webhook.ErrClosed after Close.
func (g *Gate) Enter(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return webhook.ErrClosed
	}
	g.inside.Add(1)
	return nil
}

// Leave ends a call.
func (g *Gate) Leave() { g.inside.Done() }

// Close lets no more calls begin, and waits for those that have. It reports whether it is
// the first; any other returns at once.
func (g *Gate) Close() bool {
	g.mu.Lock()
	first := !g.closed
	g.closed = true
	g.mu.Unlock()
	if first {
		g.inside.Wait()
	}
	return first
}

// Process is what a process is called that was given no name: the host's name and the
// process id.
func Process() string {
	host, _ := os.Hostname()
	return fmt.Sprintf("%s/%d", host, os.Getpid())
}
