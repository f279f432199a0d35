package webhook

import (
	"context"
	"slices"
	"strings"

	"github.com/hookferry/analytics/webhook/store"
)

// DestinationStats returns the stats of every destination that was attempted, is held, or has
// deliveries in the store, in the order of their ids. Its cost grows with their number. With an error
// of the store, Waiting and Oldest are not known.
func (f *Forwarder) DestinationStats(ctx context.Context) ([]DestinationStats, error) {
	return f.statsOf(ctx, nil)
}

// StatsOf is DestinationStats for the destinations with these ids alone. What it costs does not grow
// with the number of all destinations.
func (f *Forwarder) StatsOf(ctx context.Context, ids ...string) ([]DestinationStats, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	return f.statsOf(ctx, slices.Compact(slices.Sorted(slices.Values(ids))))
}

// TenantStats is StatsOf for the destinations that a tenant has now.
func (f *Forwarder) TenantStats(ctx context.Context, tenant string) ([]DestinationStats, error) {
	all, err := f.directory.of(ctx, nil, tenant)
	if err != nil {
		return nil, err
	}
	ids := make([]string, len(all))
	for i := range all {
		ids[i] = all[i].ID
	}
	return f.StatsOf(ctx, ids...)
}

// statsOf returns the stats of the destinations in only, or of all if it is empty.
func (f *Forwarder) statsOf(ctx context.Context, only []string) ([]DestinationStats, error) {
	byID := make(map[string]*DestinationStats)
	of := func(id string) *DestinationStats {
		if byID[id] == nil {
			byID[id] = &DestinationStats{Destination: id}
		}
		return byID[id]
	}
	for _, a := range f.recorder.accounts.all(only) {
		s := a.stats()
		*of(s.Destination) = s
	}
	f.schedule.Loads(only, func(id string, active, ready int) { of(id).InFlight, of(id).Ready = active, ready })
	for _, h := range f.held(only) {
		of(h.Destination).Held = &h
	}
	var err error
	for c, failed := range f.config.Store.CountByDestination(ctx, only...) {
		if err = failed; err != nil {
			break
		}
		s := of(c.Destination)
		s.Waiting, s.Behind, s.Oldest = c.Waiting, c.Behind, c.Oldest
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
	if h, ok := f.config.Store.(store.History); ok {
		s.Unkept = h.Unkept()
	}
	if m, ok := f.config.Store.(store.Maintained); ok {
		s.Failing = m.Failing()
	}
	s.InFlight, s.Ready = f.schedule.Load()
	return s
}
