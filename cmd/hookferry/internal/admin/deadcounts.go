package admin

import (
	"context"
	"sync"
	"time"

	"github.com/hookferry/analytics/webhook"
)

// No store keeps a count of dead letters for each destination, so they are counted by
// reading them: for at most countTime, then not for countEvery, nor for countRest times as
// long as it took. Of more dead letters than can be read in countTime, which are some tens
// of thousands, the counts are not known.
const (
	countTime  = 500 * time.Millisecond
	countEvery = 5 * time.Second
	countRest  = 50
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
	c.counting, c.by, c.next = false, by, time.Now().Add(max(countEvery, countRest*time.Since(began)))
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
