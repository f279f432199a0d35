package simulation

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/hookferry/analytics/webhook/webhooktest"
)

// A mood is how a receiver answers for a while.
type mood int

const (
	healthy mood = iota
	flaky
	slow
	down
	refusing
	moods
)

// An endpoint is a receiver that changes its mood.
type endpoint struct {
	url string
	w   *world

	mu   sync.Mutex
	rnd  *rand.Rand
	mood mood
}

func newEndpoint(w *world, url string) *endpoint {
	e := &endpoint{url: url, w: w, rnd: w.random(url)}
	w.network.Receiver(url, "secret", webhooktest.Do(e.answer))
	return e
}

func (e *endpoint) set(m mood) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mood = m
}

// answer chooses the answer to a request, and notes it if that takes the delivery.
func (e *endpoint) answer(r *webhooktest.Request) webhooktest.Step {
	e.mu.Lock()
	defer e.mu.Unlock()
	id, _ := r.JSON["messageId"].(string)
	if r.Signature != nil || id == "" {
		e.w.fail(fmt.Errorf("%s got a request with the signature %v and the messageId %q", e.url, r.Signature, id))
	}
	m := e.mood
	if m == flaky && e.rnd.IntN(2) == 0 {
		m = healthy
	}
	switch m {
	case down:
		if e.rnd.IntN(2) == 0 {
			return webhooktest.Close()
		}
		return webhooktest.Answer(503)
	case refusing:
		return webhooktest.Answer(404)
	case flaky:
		switch e.rnd.IntN(6) {
		case 0:
			return webhooktest.Answer(500)
		case 1:
			return webhooktest.Answer(429).With("Retry-After", fmt.Sprint(e.rnd.IntN(300)))
		case 2:
			return webhooktest.Close()
		case 3:
			return webhooktest.Garbage()
		case 4:
			return webhooktest.Hang()
		}
		e.w.ledger.take(e.url, id) // and the answer comes too late
		e.w.ledger.doubt(e.url, id)
		return webhooktest.Answer(200).After(6 * time.Second)
	}
	e.w.ledger.take(e.url, id)
	step := webhooktest.Answer(200 + e.rnd.IntN(5))
	if m == slow {
		step = step.After(time.Duration(e.rnd.Int64N(int64(4 * time.Second))))
	}
	return step
}
