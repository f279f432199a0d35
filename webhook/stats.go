package webhook

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// reasons is the closed list, in the order of counters.
var reasons = [...]Reason{
	ReasonTimeout, ReasonDNS, ReasonConnection, ReasonProtocol, ReasonCertificate, ReasonAddress,
	ReasonAuthorize, ReasonRedirect, ReasonThrottled, ReasonRefused, ReasonServerError, ReasonExpired,
	ReasonDisabled,
}

// Stats counts what a Forwarder has done since New, each thing once it is
// stored.
type Stats struct {
	// Accepted counts the deliveries stored, and those stored by ForwardTx on any node that
	// this node was the first to claim.
	Accepted int64
	// InTransaction counts the deliveries that ForwardTx has stored here, whether their
	// transactions were committed or not.
	InTransaction int64
	// Duplicates counts those left out because the store had seen them.
	Duplicates int64
	// Off counts the events not forwarded because their integrations switch
	// Webhooks off.
	Off int64
	// Filtered counts the deliveries that were not stored because the filter of their
	// destination, or its Transform, leaves them out.
	Filtered int64
	// TransformErrors counts the deliveries that were not stored because the Transform of
	// their destination failed.
	TransformErrors int64
	// Delivered counts the deliveries that an endpoint took.
	Delivered int64
	// Retried counts the attempts that failed and are to be repeated.
	Retried int64
	// Resent counts the requests made twice within an attempt, because a
	// connection that was kept ended without a byte of an answer, or with an
	// answer of 408 or 400 that closed it, as some receivers send on an idle
	// one. The receiver may have got both.
	Resent int64
	// Dead counts the deliveries given up, by reason. Only reasons that
	// occurred are in it.
	Dead map[Reason]int64
	// Discarded counts the deliveries that DiscardWaiting has forgotten.
	Discarded int64
	// Forgotten counts the dead letters that were discarded to keep the bounds
	// of the Config.
	Forgotten Forgotten
	// ObserverPanics counts the calls of Config.Observer that panicked.
	ObserverPanics int64

	// InFlight counts the deliveries that are being attempted now, and Ready
	// those that wait in memory to be.
	InFlight, Ready int
	// Latency is that of requests.
	Latency Latency
}

// Latency says how long requests took, from the dial to the end of the answer,
// whatever that was; those that were cut off are left out.
type Latency struct {
	// Requests counts them.
	Requests int64
	// P50, P90 and P99 are what 50, 90 and 99 of 100 requests did not exceed,
	// at most an eighth too long: of some of the 8,192 latest, the later the
	// more of them.
	P50, P90, P99 time.Duration
}

// DestinationStats is what a Forwarder and its store know of one destination.
type DestinationStats struct {
	// Destination is its id.
	Destination string

	// Since is when counting began: with the first attempt or filtered event, or error of Transform, or after the
	// counts were forgotten, because 16,384 destinations were used later. Zero
	// if nothing was attempted. Delivered, Retried, Dead and Latency are
	// counted from then on; see Stats.
	Since              time.Time
	Delivered, Retried int64
	Dead               map[Reason]int64
	Latency            Latency
	// Filtered and TransformErrors are counted from Since on, too: see Stats.
	Filtered, TransformErrors int64

	// Outcome is what the latest attempt led to, once that is stored:
	// OutcomeDelivered, OutcomeRetryable or OutcomePermanent. It is empty if there
	// was no attempt since Since.
	Outcome Outcome
	// Refusing says that the destination refuses deliveries for good: the latest
	// one that ended, or at least half of the latest eight. Each of those refused
	// is a dead letter.
	Refusing bool
	// Failure is the latest attempt that failed, nil if none did. The destination
	// may have taken other deliveries since.
	Failure *Failure

	// InFlight and Ready are those of Stats.
	InFlight, Ready int
	// Held says why its deliveries wait although they are due, nil if they do
	// not.
	Held *Held

	// Counted says that Waiting and Oldest are known: the store has not failed.
	Counted bool
	// Waiting counts the deliveries in the store, those in flight included.
	Waiting int
	// Oldest is the earliest Due of those that are not claimed: the first of
	// them could have been attempted from then on. Zero if there is none.
	Oldest time.Time
}

// A Failure is an attempt that failed.
type Failure struct {
	// MessageID and Source are those of the delivery.
	MessageID, Source string
	// Attempt is the request; with several endpoints, that to the last one.
	Attempt
	// Due is when the delivery is attempted again; zero if it was given up.
	Due time.Time
}

type counters struct {
	accepted, inTransaction, duplicates, off, filtered, transformErrors, delivered, retried, discarded atomic.Int64

	dead [len(reasons)]atomic.Int64

	forgottenAge, forgottenSize atomic.Int64
}

// settled counts the outcome of a delivery that was attempted, or buried.
func (c *counters) settled(s *Settlement) {
	switch s.Verdict {
	case Done:
		c.delivered.Add(1)
	case Retry:
		c.retried.Add(1)
	case Bury:
		// A reason that a later version has stored is not in the list.
		if i := slices.Index(reasons[:], s.Reason); i >= 0 {
			c.dead[i].Add(1)
		}
	}
}

// reasonCounts returns the counts that are not zero.
func reasonCounts(count func(i int) int64) map[Reason]int64 {
	m := make(map[Reason]int64)
	for i, r := range reasons {
		if n := count(i); n > 0 {
			m[r] = n
		}
	}
	return m
}

// DestinationStats returns the stats of every destination that was attempted,
// is held, or that the store has deliveries for, by id. It costs a pass over all
// of these, so it is for a page or a scrape. An error is the store's; the rest is
// returned with it.
func (f *Forwarder) DestinationStats(ctx context.Context) ([]DestinationStats, error) {
	by := make(map[string]*DestinationStats)
	of := func(id string) *DestinationStats {
		s := by[id]
		if s == nil {
			s = &DestinationStats{Destination: id}
			by[id] = s
		}
		return s
	}
	for _, a := range f.accounts.all() {
		s := of(a.id)
		s.Since, s.Latency, s.Filtered = a.since, a.quantiles(), a.filtered.Load()
		s.TransformErrors = a.transformErrors.Load()
		a.mu.Lock()
		s.Delivered, s.Retried = a.delivered, a.retried
		s.Dead = reasonCounts(func(i int) int64 { return a.dead[i] })
		a.condition(s)
		a.mu.Unlock()
	}
	for _, l := range f.schedule.Loads() {
		s := of(l.Destination)
		s.InFlight, s.Ready = l.Active, l.Ready
	}
	for _, h := range f.Held() {
		of(h.Destination).Held = &h
	}
	var err error
	for c, cerr := range f.config.Store.CountByDestination(ctx) {
		if cerr != nil {
			err = cerr
			break
		}
		s := of(c.Destination)
		s.Waiting, s.Oldest = c.Waiting, c.Oldest
	}
	all := make([]DestinationStats, 0, len(by))
	for _, s := range by {
		s.Counted = err == nil
		all = append(all, *s)
	}
	slices.SortFunc(all, func(a, b DestinationStats) int { return strings.Compare(a.Destination, b.Destination) })
	return all, err
}

// Stats returns the counts. It may be called at any time.
func (f *Forwarder) Stats() Stats {
	c := &f.count
	s := Stats{
		Accepted:      c.accepted.Load(),
		InTransaction: c.inTransaction.Load(),
		Duplicates:    c.duplicates.Load(),
		Off:           c.off.Load(),
		Filtered:      c.filtered.Load(),

		TransformErrors: c.transformErrors.Load(),

		Delivered: c.delivered.Load(),
		Retried:   c.retried.Load(),
		Resent:    f.client.Resent(),
		Discarded: c.discarded.Load(),
		Dead:      reasonCounts(func(i int) int64 { return c.dead[i].Load() }),
		Forgotten: Forgotten{Age: c.forgottenAge.Load(), Size: c.forgottenSize.Load()},
	}
	if o, ok := f.config.Store.(Outbox); ok {
		s.Accepted += o.FirstClaims()
	}
	s.InFlight, s.Ready = f.schedule.Load()
	s.Latency = f.total.quantiles()
	if f.observed != nil {
		s.ObserverPanics = f.observed.panics.Load()
	}
	return s
}
