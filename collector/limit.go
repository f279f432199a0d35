package collector

import (
	"fmt"
	"math"
	"net/http"
	"sync"
	"time"
)

// A Limit bounds what a source sends over time: its calls, or the bytes of its webhooks. It is safe
// for concurrent use, and the write keys of a source may share it.
//
// A Limit takes a request as a whole, or refuses it. It takes a request if at least one more call
// or byte is allowed. A request that has more than is allowed leaves a debt, and until the debt is
// worked off, the Limit refuses all requests. With the arguments rate and burst of NewLimit, it
// takes at most burst + t*rate calls or bytes in t seconds, plus those of one request.
type Limit struct {
	rate, burst float64

	mu     sync.Mutex
	tokens float64 // negative for a debt
	at     time.Time
}

// NewLimit returns a Limit of rate calls or bytes a second, with a burst. It panics unless
// rate is above 0 and finite, and burst at least 1.
func NewLimit(rate float64, burst int) *Limit {
	if !(rate > 0) || math.IsInf(rate, 1) || burst < 1 {
		panic(fmt.Sprintf("collector: NewLimit(%v, %d): want a rate above 0 and a burst of at least 1", rate, burst))
	}
	return &Limit{rate: rate, burst: float64(burst), tokens: float64(burst)}
}

// spend takes the calls of a request from s.Limit, and the bytes of its webhooks from s.ByteLimit.
// If one of the two limits refuses, spend takes nothing from either, and returns a refusal.
func (s *Source) spend(calls, bytes int) error {
	what := "calls"
	wait := s.Limit.take(calls)
	if wait == 0 {
		if wait = s.ByteLimit.take(bytes); wait == 0 {
			return nil
		}
		what = "bytes"
		s.Limit.giveBack(calls)
	}
	return &refusal{http.StatusTooManyRequests, "rate_limited", "the source sends more " + what + " than its limit", wait}
}

func (l *Limit) giveBack(n int) {
	if l != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.tokens += float64(n)
	}
}

// take takes n tokens, one for each call or byte, and returns 0. If there is less than one token,
// take takes none, and returns the time until there is one. With n = 0 it only asks. A nil Limit
// allows everything.
func (l *Limit) take(n int) (wait time.Duration) {
	if l == nil {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now() // read under the lock: a time before l.at would count some time twice
	if !l.at.IsZero() {
		l.tokens = min(l.burst, l.tokens+l.rate*now.Sub(l.at).Seconds())
	}
	l.at = now
	if l.tokens < 1 {
		// At a very low rate the wait would overflow a Duration.
		return time.Duration(min((1-l.tokens)/l.rate, maxWait.Seconds()) * float64(time.Second))
	}
	l.tokens -= float64(n)
	return 0
}

// maxWait is the longest that a client is told to wait.
const maxWait = 24 * time.Hour
