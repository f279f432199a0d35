package feed

import (
	"context"
	"time"

	"github.com/hookferry/analytics/webhook"
)

const (
	// sampleEvery is the least time between two counts of what waits in the store.
	sampleEvery = time.Second
	// sampleShare is how many times as long as a count took the store is then left alone, so that
	// counting many destinations does not keep it busy.
	sampleShare = 50
)

// Run notes how much waits in a store, until ctx is done.
func (f *Feed) Run(ctx context.Context, store webhook.Store) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		begin := time.Now()
		if c, err := store.Count(ctx); err == nil {
			f.waits(c.Waiting)
		}
		by := make(map[string]int)
		for c, err := range store.CountByDestination(ctx) {
			if err != nil {
				by = nil
				break
			}
			by[c.Destination] = c.Waiting
		}
		if by != nil {
			f.waitsEach(by)
		}
		timer.Reset(max(sampleEvery, sampleShare*time.Since(begin)))
	}
}

func (f *Feed) waits(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.total.at(time.Now()).waiting = clamp(n)
}

// waitsEach notes how many deliveries wait for each destination: none for those not in by.
func (f *Feed) waitsEach(by map[string]int) {
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, n := range by {
		if n > 0 && f.destinations[id] == nil {
			f.countsOf(id, now)
		}
	}
	for id, c := range f.destinations {
		c.at(now).waiting = clamp(by[id])
	}
}

func clamp(n int) int32 { return int32(min(n, 1<<31-1)) }
