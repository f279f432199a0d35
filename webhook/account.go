package webhook

import (
	"cmp"
	"maps"
	"math/bits"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A tally counts the outcomes of deliveries and the durations of requests, either for one
// destination or for all destinations together.
type tally struct {
	filtered, transformErrors atomic.Int64

	mu                           sync.Mutex // guards the fields below
	delivered, retried, requests int64
	dead                         [len(reasons)]int64
	latency                      histogram
}

func (t *tally) requested(took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.requests++
	t.latency.add(took)
}

func (t *tally) settled(s *Settlement) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch s.Verdict {
	case Done:
		t.delivered++
	case Retry:
		t.retried++
	case Bury:
		// A later version of this package may have stored a reason that is not in the list.
		if i := slices.Index(reasons[:], s.Reason); i >= 0 {
			t.dead[i]++
		}
	}
}

func (t *tally) stats() DestinationStats {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := DestinationStats{
		Filtered: t.filtered.Load(), TransformErrors: t.transformErrors.Load(),
		Delivered: t.delivered, Retried: t.retried, Dead: make(map[Reason]int64),
		Latency: Latency{
			Requests: t.requests,
			P50:      t.latency.quantile(0.50),
			P90:      t.latency.quantile(0.90),
			P99:      t.latency.quantile(0.99),
		},
	}
	for i, n := range t.dead {
		if n > 0 {
			s.Dead[reasons[i]] = n
		}
	}
	return s
}

// maxAccounts bounds the accounts in memory. At this number, a new account evicts an eighth of the
// accounts: the least recently used ones.
const maxAccounts = 16 << 10

// An account holds the statistics of one destination. It takes about 900 bytes, and up to 512 more
// for the latest failure.
type account struct {
	tally
	id            string
	since         time.Time
	used          atomic.Int64 // seconds since 1970
	untransformed logState

	// tally.mu guards the fields below, too.
	failing time.Time // start of the current series of failures; zero if there is none or DisableAfter is 0
	outcome Outcome   // of the latest attempt
	refused uint8     // one bit for each of the last eight deliveries that ended, the latest in bit 0: 1 means refused for good
	failure Failure   // the latest failure; none if its Try is 0
}

// settled counts a settlement and updates the condition of the destination.
func (a *account) settled(s *Settlement, now time.Time) {
	a.tally.settled(s)
	a.used.Store(now.Unix())
	a.mu.Lock()
	defer a.mu.Unlock()
	if s.Verdict != Retry {
		a.refused <<= 1
	}
	switch {
	case s.Verdict == Done:
		a.outcome, a.failing = OutcomeDelivered, time.Time{}
		return
	case s.Verdict == Bury && s.Reason.final():
		a.outcome = OutcomePermanent
		a.refused |= 1
	default:
		a.outcome = OutcomeRetryable
	}
	d := &s.Delivery
	if n := len(d.Attempts); n > 0 {
		// Clone the strings: they may be parts of a larger one, which must not stay in memory.
		a.failure = Failure{MessageID: strings.Clone(d.MessageID), Source: strings.Clone(d.Source), Attempt: d.Attempts[n-1]}
		if s.Verdict == Retry {
			a.failure.Due = d.Due
		}
	}
}

func (a *account) stats() DestinationStats {
	s := a.tally.stats()
	s.Destination, s.Since = a.id, a.since
	a.mu.Lock()
	defer a.mu.Unlock()
	s.Outcome = a.outcome
	s.Refusing = a.refused&1 != 0 || bits.OnesCount8(a.refused) >= 4
	if failure := a.failure; failure.Try > 0 {
		s.Failure = &failure
	}
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

// forgive ends the current series of failures.
func (a *account) forgive() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.failing = time.Time{}
}

// accounts holds the accounts of the destinations. It is safe for concurrent use.
type accounts struct {
	mu   sync.Mutex
	byID map[string]*account
}

// of returns the account of a destination, and creates it if there is none.
func (as *accounts) of(destination string) *account {
	as.mu.Lock()
	defer as.mu.Unlock()
	if a := as.byID[destination]; a != nil {
		return a
	}
	if len(as.byID) >= maxAccounts {
		used := func(a, b *account) int { return cmp.Compare(a.used.Load(), b.used.Load()) }
		for _, a := range slices.SortedFunc(maps.Values(as.byID), used)[:maxAccounts/8] {
			delete(as.byID, a.id)
		}
	}
	now := time.Now()
	a := &account{id: strings.Clone(destination), since: now}
	a.used.Store(now.Unix())
	if as.byID == nil {
		as.byID = make(map[string]*account)
	}
	as.byID[a.id] = a
	return a
}

func (as *accounts) all() []*account {
	as.mu.Lock()
	defer as.mu.Unlock()
	return slices.Collect(maps.Values(as.byID))
}
