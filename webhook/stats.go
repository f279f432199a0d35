package webhook

import (
	"context"
	"maps"
	"math/bits"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// Stats counts what a Forwarder has done since New. Each outcome counts once it is stored.
type Stats struct {
	Counters
	// Accepted counts the deliveries that this node has stored. Those of ForwardTx count on the node
	// that is the first to claim them. InTransaction counts those that ForwardTx has stored on this
	// node, whether their transactions were committed or not.
	Accepted, InTransaction int64
	Duplicates              int64 // deliveries left out because the store remembers their IDs
	Off                     int64 // events left out because their integrations switch Webhooks off
	// Resent counts the requests made twice within an attempt, because the receiver closed the kept
	// connection without an answer, or with a 408 or 400 for an idle one, or refused the request by a
	// frame of HTTP/2. It may have got both, except with HTTP/2.
	Resent         int64
	Discarded      int64 // deliveries that ChangeWaiting discarded
	Forgotten      Forgotten
	ObserverPanics int64 // calls of Config.Observer that panicked
	// Failing says since when maintenance steps of the store fail; see Maintained. Nil if none does.
	Failing map[string]time.Time

	// InFlight counts the deliveries that are being attempted, Ready those claimed that wait for it.
	InFlight, Ready int
}

// Counters counts what became of the deliveries of one destination, or of all.
type Counters struct {
	// Filtered counts what the destination's filter or Transform left out, and what Forward got for one
	// that takes nothing. TransformErrors counts what was left out because the Transform failed.
	Filtered, TransformErrors int64
	// Delivered counts the deliveries that an endpoint took, Retried the attempts that are repeated.
	Delivered, Retried int64
	Dead               map[Reason]int64 // deliveries given up, by reason, without reasons that have not occurred
	Latency            Latency
}

// Latency says how long requests took, from the dial to the end of the answer, whatever its status.
// It leaves out requests that were cut off.
type Latency struct {
	Requests int64
	// P50, P90 and P99 are the times that 50, 90 and 99 of 100 requests did not exceed, estimated at
	// most an eighth too high. Later requests weigh more.
	P50, P90, P99 time.Duration
}

// DestinationStats is what a Forwarder and its store know of one destination.
type DestinationStats struct {
	Destination string
	// Since is when this node began to count for the destination, zero if there was nothing to count.
	// If over 16,384 destinations are in use, those used least recently start again from zero.
	Since time.Time
	Counters
	// Outcome is that of the latest attempt with a stored outcome, empty if there was none since.
	Outcome Outcome
	// Refusing says that the destination refused, for good, the latest delivery that ended, or at
	// least half of the latest eight. Each refused delivery is a dead letter.
	Refusing bool
	Failure  *Failure // the latest failed attempt, nil if none failed; others may have succeeded since
	Held     *Held    // nil if the destination is not held

	InFlight, Ready int       // as in Stats
	Waiting         int       // deliveries in the store, including those in flight
	Oldest          time.Time // the earliest Due of those that are not claimed, zero if there are none
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
	s.Resent = f.client.Resent()
	if o, ok := f.config.Store.(store.Outbox); ok {
		s.Accepted += o.FirstClaims()
	}
	if m, ok := f.config.Store.(store.Maintained); ok {
		s.Failing = m.Failing()
	}
	s.InFlight, s.Ready = f.schedule.Load()
	return s
}

// A ledger counts what happens to deliveries, logs it and tells the observer.
type recorder struct {
	config   *Config
	total    account // of all destinations
	accounts accounts

	mu    sync.Mutex // guards stats
	stats Stats      // only the counts that total does not have
}

func (r *recorder) count(add func(*Stats)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	add(&r.stats)
}

const maxAccounts = 16 << 10 // destinations that keep their counts; up to twice as many are in memory

// An account holds the statistics of one destination, or of all destinations together. It takes
// about 900 bytes, and up to 512 more for the latest failure.
type account struct {
	untransformed logState

	mu      sync.Mutex // guards the fields below
	counts  DestinationStats
	latency histogram
	failing time.Time // start of the current series of failures; zero if there is none or DisableAfter is 0
	refused uint8     // one bit for each of the last eight deliveries that ended, the latest in bit 0: 1 means refused for good
}

// countFor calls add with the account of the destination, and with that of all destinations.
func (r *recorder) countFor(destination string, add func(*account)) {
	for _, a := range [...]*account{r.accounts.of(destination), &r.total} {
		a.mu.Lock()
		add(a)
		a.mu.Unlock()
	}
}

// settled counts a settlement that is stored. The caller holds a.mu.
func (a *account) settled(s *store.Settlement) {
	c := &a.counts
	if s.Verdict != store.Retry {
		a.refused <<= 1
	}
	c.Outcome = OutcomeRetryable
	switch s.Verdict {
	case store.Done:
		c.Delivered++
		c.Outcome, a.failing = OutcomeDelivered, time.Time{}
		return
	case store.Retry:
		c.Retried++
	case store.Bury:
		if isFinal(s.Reason) {
			c.Outcome = OutcomePermanent
			a.refused |= 1
		}
		if c.Dead == nil {
			c.Dead = make(map[Reason]int64)
		}
		c.Dead[s.Reason]++
	}
	d := &s.Delivery
	if n := len(d.Attempts); n > 0 {
		// Clone the strings: they may be parts of a larger one, which must not stay in memory.
		c.Failure = &Failure{MessageID: strings.Clone(d.MessageID), Source: strings.Clone(d.Source), Attempt: d.Attempts[n-1]}
		if s.Verdict == store.Retry {
			c.Failure.Due = d.Due
		}
	}
}

func (a *account) stats() DestinationStats {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.counts
	s.Dead = make(map[Reason]int64)
	maps.Copy(s.Dead, a.counts.Dead)
	s.Latency.P50, s.Latency.P90, s.Latency.P99 = a.latency.quantile(0.50), a.latency.quantile(0.90), a.latency.quantile(0.99)
	s.Refusing = a.refused&1 != 0 || bits.OnesCount8(a.refused) >= 4
	return s
}

// failingSince records a failure at now, and returns the start of the current series of failures.
func (a *account) failingSince(now time.Time) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.failing.IsZero() {
		a.failing = now
	}
	return a.failing
}

// accounts holds the accounts of the destinations, for concurrent use. At maxAccounts recent ones,
// these become the older ones, and replace those that were not used since the previous time.
type accounts struct {
	mu            sync.Mutex
	recent, older map[string]*account
}

// of returns the account of a destination, and creates it if there is none.
func (as *accounts) of(destination string) *account {
	as.mu.Lock()
	defer as.mu.Unlock()
	if a := as.recent[destination]; a != nil {
		return a
	}
	if as.recent == nil || len(as.recent) >= maxAccounts {
		as.recent, as.older = make(map[string]*account), as.recent
	}
	a := as.older[destination]
	if a == nil {
		a = new(account)
		a.counts.Destination, a.counts.Since = strings.Clone(destination), time.Now()
	}
	delete(as.older, destination)
	as.recent[a.counts.Destination] = a
	return a
}

func (as *accounts) all() []*account {
	as.mu.Lock()
	defer as.mu.Unlock()
	return slices.AppendSeq(slices.Collect(maps.Values(as.recent)), maps.Values(as.older))
}
