package collector

import (
	"fmt"
	"math"
	"sync"
	"time"
)

// A Limit bounds what a source sends over time: its calls, or the bytes of its webhooks.
// It is safe for concurrent use, and may be shared by the write keys of a source.
//
// A request is taken whole or not at all. One of more than burst is taken too, and leaves a
// debt, which has to be worked off before the next is taken. So in t seconds there are at
// most burst + t*rate calls or bytes, plus those of one request.
type Limit struct {
	rate, burst float64

	mu     sync.Mutex
	tokens float64 // negative: a debt
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

// spend takes the calls of a request, and the bytes of its webhooks, from both limits of the
// source. If one of them does not allow it, it refuses the request and takes nothing.
func (s *Source) spend(calls, bytes int) *refusal {
	if wait := s.Limit.take(calls); wait > 0 {
		return tooMany("calls", wait)
	}
	if wait := s.ByteLimit.take(bytes); wait > 0 {
		s.Limit.giveBack(calls)
		return tooMany("bytes", wait)
	}
	return nil
}

// giveBack undoes a take.
func (l *Limit) giveBack(n int) {
	if l != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.tokens += float64(n)
	}
}

// take takes n, or returns how long it is until one can be taken. With an n of 0 it only
// asks. A nil Limit bounds nothing.
func (l *Limit) take(n int) (wait time.Duration) {
	if l == nil {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now() // under the lock: before l.at, the same time would count twice
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
