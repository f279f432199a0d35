package webhook

import (
	"context"
	"slices"
	"strings"

	"github.com/hookferry/analytics/webhook/store"
)

// DestinationStats returns the stats of every destination that was attempted, is held, or has
// deliveries in the store, in the order of their ids. Its cost grows with their number. With an
// error of the store, Waiting and Oldest are not known.
func (f *Forwarder) DestinationStats(ctx context.Context) ([]DestinationStats, error) {
	byID := make(map[string]*DestinationStats)
	of := func(id string) *DestinationStats {
		if byID[id] == nil {
			byID[id] = &DestinationStats{Destination: id}
		}
		return byID[id]
	}
	for _, a := range f.recorder.accounts.all() {
		s := a.stats()
		*of(s.Destination) = s
	}
	f.schedule.Loads(func(id string, active, ready int) { of(id).InFlight, of(id).Ready = active, ready })
	for _, h := range f.Held() {
		of(h.Destination).Held = &h
	}
	var err error
	for c, failed := range f.config.Store.CountByDestination(ctx) {
		if err = failed; err != nil {
			break
		}
		s := of(c.Destination)
		s.Waiting, s.Oldest = c.Waiting, c.Oldest
	}
	all := make([]DestinationStats, 0, len(byID))
	for _, s := range byID {
		all = append(all, *s)
	}
	slices.SortFunc(all, func(a, b DestinationStats) int { return strings.Compare(a.Destination, b.Destination) })
	return all, err
}

// Stats returns the counts. It may be called at any time.
func (f *Forwarder) Stats() Stats {
	f.recorder.mu.Lock()
	s := f.recorder.stats
	f.recorder.mu.Unlock()
	s.Counters = f.recorder.total.stats().Counters
	s.Resent = f.clients.resent()
	if o, ok := f.config.Store.(store.Outbox); ok {
		s.Accepted += o.FirstClaims()
	}
	if m, ok := f.config.Store.(store.Maintained); ok {
		s.Failing = m.Failing()
	}
	s.InFlight, s.Ready = f.schedule.Load()
	return s
}
