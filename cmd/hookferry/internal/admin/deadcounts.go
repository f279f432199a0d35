package admin

import (
	"context"
	"sync"
	"time"

	"github.com/hookferry/analytics/webhook"
)

// No store counts dead letters by destination, so deadCounts.get reads all dead letters. These
// constants bound the load. A count stops after countTime, which is enough for some tens of
// thousands of dead letters; the numbers are then unknown. The next count starts after countEvery,
// or after countRest times the duration of the last count, whichever is longer.
const (
	countTime  = 500 * time.Millisecond
	countEvery = 5 * time.Second
	countRest  = 50
)

// deadCounts has the number of dead letters of each destination.
type deadCounts struct {
	mu       sync.Mutex
	counting bool
	by       map[string]int // nil if the numbers are unknown
	next     time.Time      // when the next count may start
}

// get returns the number of dead letters of each destination, or nil if the numbers are unknown.
// They may be some seconds old. If another caller is counting, get does not wait, and returns the
// previous numbers.
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

// readDead counts the dead letters of each destination. It returns nil after countTime.
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
