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

// maxAccounts is how many destinations' counts are kept. Beyond that, the eighth of
// them that was not used for longest is forgotten.
const maxAccounts = 16 << 10

// An account counts what was done for one destination, in about 900 bytes and up to
// 512 of the latest failure.
type account struct {
	id              string
	since           time.Time
	used            atomic.Int64 // seconds since 1970
	filtered        atomic.Int64
	transformErrors atomic.Int64
	untransformed   logState
	gone            atomic.Bool // it was forgotten, so what is counted in it is lost

	mu                 sync.Mutex
	delivered, retried int64
	fails              time.Time // since when all attempts failed; zero without Config.DisableAfter
	dead               [len(reasons)]int64
	requests           int64
	latency            histogram
	outcome            Outcome // of the latest attempt
	refused            uint8   // a bit for each of the latest eight that ended, the latest lowest: it was refused
	failure            Failure // the latest, if it has a Try
}

// took counts a request.
func (a *account) took(d time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.requests++
	a.latency.add(d)
}

// settled counts what is stored of a delivery.
func (a *account) settled(s *Settlement, now time.Time) {
	a.used.Store(now.Unix())
	a.mu.Lock()
	defer a.mu.Unlock()
	switch s.Verdict {
	case Done:
		a.delivered++
		a.outcome = OutcomeDelivered
		a.fails = time.Time{}
		a.refused <<= 1
		return
	case Retry:
		a.retried++
		a.outcome = OutcomeRetryable
	case Bury:
		if i := slices.Index(reasons[:], s.Reason); i >= 0 {
			a.dead[i]++
		}
		a.outcome = OutcomeRetryable
		a.refused <<= 1
		if s.Reason.final() {
			a.outcome = OutcomePermanent
			a.refused |= 1
		}
	}
	d := &s.Delivery
	if n := len(d.Attempts); n > 0 {
		// The texts may keep a record in memory.
		a.failure = Failure{MessageID: strings.Clone(d.MessageID), Source: strings.Clone(d.Source), Attempt: d.Attempts[n-1]}
		if s.Verdict == Retry {
			a.failure.Due = d.Due
		}
	}
}

// condition sets the fields of s that say how the destination is.
func (a *account) condition(s *DestinationStats) {
	s.Outcome = a.outcome
	s.Refusing = a.refused&1 != 0 || bits.OnesCount8(a.refused) >= 4
	if a.failure.Try > 0 {
		failure := a.failure
		s.Failure = &failure
	}
}

// quantiles returns the Latency.
func (a *account) quantiles() Latency {
	a.mu.Lock()
	defer a.mu.Unlock()
	return Latency{
		Requests: a.requests,
		P50:      a.latency.quantile(0.50),
		P90:      a.latency.quantile(0.90),
		P99:      a.latency.quantile(0.99),
	}
}

// An accounts holds one account for each destination that was attempted.
type accounts struct {
	mu sync.Mutex
	by map[string]*account
}

// of returns the account of a lane's destination.
func (as *accounts) of(l *lane) *account {
	a := l.account.Load()
	if a == nil || a.gone.Load() {
		a = as.get(l.ID)
		l.account.Store(a)
	}
	return a
}

// get returns the account of a destination, which is made if need be.
func (as *accounts) get(id string) *account {
	as.mu.Lock()
	defer as.mu.Unlock()
	if a := as.by[id]; a != nil {
		return a
	}
	if len(as.by) >= maxAccounts {
		as.forget()
	}
	now := time.Now()
	a := &account{id: id, since: now}
	a.used.Store(now.Unix())
	if as.by == nil {
		as.by = make(map[string]*account)
	}
	as.by[id] = a
	return a
}

// forget drops the accounts that were used least lately. as.mu is held.
func (as *accounts) forget() {
	all := slices.SortedFunc(maps.Values(as.by), func(a, b *account) int {
		return cmp.Compare(a.used.Load(), b.used.Load())
	})
	for _, a := range all[:len(all)/8+1] {
		a.gone.Store(true)
		delete(as.by, a.id)
	}
}

func (as *accounts) all() []*account {
	as.mu.Lock()
	defer as.mu.Unlock()
	return slices.Collect(maps.Values(as.by))
}
