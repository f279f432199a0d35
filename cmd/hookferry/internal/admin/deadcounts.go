package admin

import (
	"context"
	"sync"
	"time"

	"github.com/hookferry/analytics/webhook"
)

// No store keeps a count of dead letters for each destination, so they are counted by
// reading them: at most every countEvery, and for countTime. Of more dead letters than can
// be read in it, the counts are not known.
const (
	countTime  = 100 * time.Millisecond
	countEvery = 50 * countTime
)

// deadCounts are the dead letters in the store, by destination.
type deadCounts struct {
	mu       sync.Mutex
	counting bool
	by       map[string]int // nil: not known
	next     time.Time      // when they are counted again
}

// get returns the counts, which may be some seconds old, and nil if they are not known.
func (c *deadCounts) get(ctx context.Context, f *webhook.Forwarder) map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counting || time.Now().Before(c.next) {
		return c.by
	}
	c.counting = true
	c.mu.Unlock()
	began := time.Now()
	by := countDead(ctx, f)
	c.mu.Lock()
	c.counting, c.by, c.next = false, by, began.Add(countEvery)
	return by
}

// countDead counts them, and returns nil if that takes too long.
func countDead(ctx context.Context, f *webhook.Forwarder) map[string]int {
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
