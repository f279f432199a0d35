package store

import (
	"context"
	"fmt"
	"os"
	"sync"
)

// A Gate counts the calls in progress of a store, so that the store's Close can wait for them.
// After Gate.Close no call can begin. The zero value is open.
type Gate struct {
	mu     sync.Mutex
	closed bool
	inside sync.WaitGroup
}

// Enter begins a call, which Leave ends. If ctx has ended, Enter returns the error of ctx. After
// Close it returns ErrClosed.
func (g *Gate) Enter(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return ErrClosed
	}
	g.inside.Add(1)
	return nil
}

// Leave ends a call.
func (g *Gate) Leave() { g.inside.Done() }

// Close makes Enter fail from now on, and waits for the calls that have begun. It reports whether
// it is the first Close. Any other Close returns at once.
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

// ProcessName returns the default name of a node: the host's name and the process id.
func ProcessName() string {
	host, _ := os.Hostname()
	return fmt.Sprintf("%s/%d", host, os.Getpid())
}
