package webhook

import (
	"context"
	"slices"
	"strings"
	"time"
)

// Stats counts what a Forwarder has done since New. Each outcome counts once it is stored.
type Stats struct {
	Counters
	// Accepted counts the deliveries that this node has stored. Those of ForwardTx count on the
	// node that is the first to claim them. InTransaction counts the deliveries that ForwardTx has
	// stored on this node, whether their transactions were committed or not.
	Accepted, InTransaction int64
	Duplicates              int64 // deliveries left out because the store remembers their IDs
	Off                     int64 // events left out because their integrations switch Webhooks off
	// Resent counts the requests that were made twice within an attempt, because the receiver
	// closed the kept connection without an answer, or with the 408 or 400 that some receivers send
	// on an idle connection. The receiver may have got both requests.
	Resent         int64
	Discarded      int64 // deliveries that ChangeWaiting discarded
	Forgotten      Forgotten
	ObserverPanics int64 // calls of Config.Observer that panicked

	// InFlight counts the deliveries that are being attempted now, and Ready those that are claimed
	// and wait in memory for an attempt.
	InFlight, Ready int
}

// Counters counts what became of the deliveries of one destination, or of all.
type Counters struct {
	// Filtered counts the deliveries that their destination's filter or Transform left out, and
	// TransformErrors those left out because the Transform failed.
	Filtered, TransformErrors int64
	// Delivered counts the deliveries that an endpoint took, and Retried the attempts that failed
	// and are repeated later.
	Delivered, Retried int64
	// Dead counts the deliveries given up, by reason. Reasons that have not occurred are left out.
	Dead    map[Reason]int64
	Latency Latency
}

// Latency says how long requests took, from the dial to the end of the answer, whatever its status.
// It leaves out requests that were cut off.
type Latency struct {
	Requests int64
	// P50, P90 and P99 are the times that 50, 90 and 99 of 100 requests did not exceed. They are
	// estimates, at most an eighth too high. Later requests weigh more.
	P50, P90, P99 time.Duration
}

// DestinationStats is what a Forwarder and its store know of one destination.
type DestinationStats struct {
	Destination string

	// Since is when this node began to count for the destination, zero if there was nothing to
	// count. The Counters count from then on. If over 16,384 destinations are in use, the counts of
	// those used least recently start again from zero.
	Since time.Time
	Counters

	// Outcome is that of the latest attempt whose outcome is stored: OutcomeDelivered,
	// OutcomeRetryable or OutcomePermanent, empty if there was no attempt after Since.
	Outcome Outcome
	// Refusing says that the destination refused, for good, the latest delivery that ended,
	// or at least half of the latest eight. Each refused delivery is a dead letter.
	Refusing bool
	// Failure is the latest attempt that failed, nil if none did. The destination may have taken
	// other deliveries since.
	Failure *Failure

	InFlight, Ready int   // as in Stats
	Held            *Held // nil if the destination is not held

	Waiting int       // deliveries in the store, including those in flight
	Oldest  time.Time // the earliest Due of those that are not claimed, zero if there are none
}

// A Failure is an attempt that failed.
type Failure struct {
	MessageID, Source string    // of the delivery
	Attempt                     // the request; with several endpoints the one to the last of them
	Due               time.Time // when the delivery is attempted again, zero if it was given up
}

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
	for _, a := range f.accounts.all() {
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
	f.mu.Lock()
	s := f.stats
	f.mu.Unlock()
	s.Counters = f.total.stats().Counters
	s.Resent = f.client.Resent()
	if o, ok := f.config.Store.(Outbox); ok {
		s.Accepted += o.FirstClaims()
	}
	s.InFlight, s.Ready = f.schedule.Load()
	return s
}

// count calls add, which adds to the counts in its argument.
func (f *Forwarder) count(add func(*Stats)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	add(&f.stats)
}
