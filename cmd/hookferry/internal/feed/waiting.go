package feed

import (
	"context"
	"time"

	"github.com/hookferry/analytics/webhook"
)

// Run counts the waiting deliveries in a store, until ctx is done. After each count it waits for a
// second, or 50 times as long as the count took.
func (f *Feed) Run(ctx context.Context, store webhook.Store) {
	for {
		begin := time.Now()
		var err error
		waiting := make(map[string]int) // by destination
		for c, failed := range store.CountByDestination(ctx) {
			waiting[c.Destination], err = c.Waiting, failed
		}
		if err == nil {
			f.waits(waiting)
		}
		select {
		case <-time.After(max(time.Second, 50*time.Since(begin))):
		case <-ctx.Done():
			return
		}
	}
}

// waits notes how many deliveries wait for each destination. If there is no room for another
// destination, it removes the counts of the one whose latest event is the oldest.
func (f *Feed) waits(waiting map[string]int) {
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	all := 0
	for id, n := range waiting {
		all += n
		if n > 0 && f.destinations[id] == nil {
			f.countsOf(id, now)
		}
	}
	f.total.waits(now, all)
	idle := f.total
	for id, c := range f.destinations {
		c.waits(now, waiting[id])
		if idle == f.total || c.used.Before(idle.used) {
			idle = c
		}
	}
	if len(f.destinations) >= f.bounds.destinations && now.Sub(idle.used) >= f.bounds.idle {
		f.missed = true
		delete(f.destinations, idle.id)
	}
}
