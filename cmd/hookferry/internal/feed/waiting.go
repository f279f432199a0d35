package feed

import (
	"cmp"
	"context"
	"time"

	"github.com/hookferry/analytics/webhook"
)

const (
	// sampleEvery is the shortest time between two counts of the waiting deliveries in the store.
	sampleEvery = time.Second
	// sampleShare bounds the load of counting. After each count, Run waits at least sampleShare
	// times as long as the count took.
	sampleShare = 50
)

// Run counts the waiting deliveries in a store again and again, until ctx is done.
func (f *Feed) Run(ctx context.Context, store webhook.Store) {
	for {
		begin := time.Now()
		all, err := store.Count(ctx)
		by := make(map[string]int)
		for c, failed := range store.CountByDestination(ctx) {
			err = cmp.Or(err, failed)
			by[c.Destination] = c.Waiting
		}
		if err == nil {
			f.waits(all.Waiting, by)
		}
		select {
		case <-time.After(max(sampleEvery, sampleShare*time.Since(begin))):
		case <-ctx.Done():
			return
		}
	}
}

// waits notes how many deliveries wait: all in all, and by for each destination. A destination that
// is missing from the map has no waiting deliveries. If no destination can be added, waits removes
// the counts of the one that has had no event for the longest time.
func (f *Feed) waits(all int, by map[string]int) {
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.total.waits(now, all)
	for id, n := range by {
		if n > 0 && f.destinations[id] == nil {
			f.countsOf(id, now)
		}
	}
	idle := f.total
	for id, c := range f.destinations {
		c.waits(now, by[id])
		if idle == f.total || c.used.Before(idle.used) {
			idle = c
		}
	}
	if len(f.destinations) >= f.bounds.destinations && now.Sub(idle.used) >= f.bounds.idle {
		f.missed = true
		delete(f.destinations, idle.id)
	}
}
