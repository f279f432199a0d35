package admin

import (
	"context"
	"sync"
	"time"

	"github.com/hookferry/analytics/webhook"
)

// No store keeps a count of dead letters by destination, so they are counted by reading them.
// The counts are unknown if that takes longer than countTime, which it does for more than some
// tens of thousands. They are counted again no sooner than countEvery later, nor than countRest
// times what the counting took.
const (
	countTime  = 500 * time.Millisecond
	countEvery = 5 * time.Second
	countRest  = 50
)

// deadCounts are the numbers of dead letters in the store, by destination.
type deadCounts struct {
	mu       sync.Mutex
	counting bool
	by       map[string]int // nil if they are unknown
	next     time.Time      // when they are counted again
}

// get returns the counts, which may be some seconds old, or nil if they are unknown. It does not
// wait for another caller that is counting.
func (c *deadCounts) get(ctx context.Context, f *webhook.Forwarder) map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counting || time.Now().Before(c.next) {
		return c.by
	}
	c.counting = true
	c.mu.Unlock()
	began := time.Now()
	by := readDead(ctx, f)
	c.mu.Lock()
	c.counting, c.by, c.next = false, by, time.Now().Add(max(countEvery, countRest*time.Since(began)))
	return by
}

// readDead counts the dead letters, and returns nil if that takes too long.
func readDead(ctx context.Context, f *webhook.Forwarder) map[string]int {
	ctx, cancel := context.WithTimeout(ctx, countTime)
	defer cancel()
	by := map[string]int{}
	for d, err := range f.Dead(ctx, webhook.DeadFilter{}) {
		if err != nil || ctx.Err() != nil {
			return nil
		}
		by[d.Destination]++
	}
	return by
}
