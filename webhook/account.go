package webhook

import (
	"maps"
	"math/bits"
	"strings"
	"sync"
	"time"

	"github.com/hookferry/analytics/webhook/histogram"
	"github.com/hookferry/analytics/webhook/store"
)

const maxAccounts = 16 << 10 // destinations that keep their counts; up to twice as many are in memory

// An account holds the statistics of one destination, or of all destinations together. It takes
// about 900 bytes, and up to 512 more for the latest failure.
type account struct {
	untransformed logState

	mu      sync.Mutex // guards the fields below
	counts  DestinationStats
	latency histogram.Durations[uint16]
	failing time.Time // start of the current series of failures; zero if there is none, or nobody is to be told
	half    bool      // FailingHalf of the series was told
	refused uint8     // one bit for each of the last eight deliveries that ended, the latest in bit 0: 1 means refused for good
}

// settled counts a settlement that is stored. If it ends a series of failures, it returns the start of
// the series. The caller holds a.mu.
func (a *account) settled(s *store.Settlement) (failed time.Time) {
	c := &a.counts
	if s.Verdict != store.Retry {
		a.refused <<= 1
	}
	c.Outcome = OutcomeRetryable
	switch s.Verdict {
	case store.Done:
		c.Delivered++
		c.Outcome, failed, a.failing = OutcomeDelivered, a.failing, time.Time{}
		return failed
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
			c.Failure.Due = d.Due.UTC()
		}
	}
	return time.Time{}
}

func (a *account) stats() DestinationStats {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.counts
	s.Dead = make(map[Reason]int64)
	maps.Copy(s.Dead, a.counts.Dead)
	s.Latency.P50, s.Latency.P90, s.Latency.P99 = Millis(a.latency.Quantile(0.50)), Millis(a.latency.Quantile(0.90)), Millis(a.latency.Quantile(0.99))
	s.Refusing = a.refused&1 != 0 || bits.OnesCount8(a.refused) >= 4
	return s
}

// failed records a failure at now. It returns the start of the series of failures, and the stage of
// the series if it is a new one. The second stage begins after the time half, unless that is zero.
func (a *account) failed(now time.Time, half time.Duration) (since time.Time, stage FailingStage) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.failing.IsZero():
		a.failing, a.half, stage = now, false, FailingBegan
	case !a.half && half > 0 && now.Sub(a.failing) >= half:
		a.half, stage = true, FailingHalf
	}
	return a.failing, stage
}

// accounts holds the accounts of the destinations, for concurrent use. When there are maxAccounts
// recent ones, these become the older ones. The older ones that were not used since the last such
// change are dropped.
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

// all returns the accounts of the destinations in only, or all of them if it is empty.
func (as *accounts) all(only []string) (all []*account) {
	as.mu.Lock()
	defer as.mu.Unlock()
	for _, accounts := range [...]map[string]*account{as.recent, as.older} {
		for _, a := range store.Among(accounts, only) {
			all = append(all, a)
		}
	}
	return all
}
