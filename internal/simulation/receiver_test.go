package simulation

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/hookferry/analytics/step"
	"github.com/hookferry/analytics/webhook/webhooktest"
)

// A behavior is how a receiver answers for a while.
type behavior int

const (
	healthy behavior = iota
	flaky
	slow
	down
	refusing
	behaviors // the number of behaviors
)

// An endpoint is a receiver whose behavior changes during a run.
type endpoint struct {
	destination string
	url         string
	w           *world

	mu       sync.Mutex
	rnd      *rand.Rand
	behavior behavior
}

func newEndpoint(w *world, destination, url string) *endpoint {
	e := &endpoint{destination: destination, url: url, w: w, rnd: w.random(url)}
	w.network.Receiver(url, "secret", webhooktest.Do(e.answer))
	return e
}

func (e *endpoint) set(b behavior) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.behavior = b
}

// answer chooses the answer to a request. It records a receipt if the answer has a 2xx status.
func (e *endpoint) answer(r *webhooktest.Request) step.Step {
	id, _ := r.JSON["messageId"].(string)
	e.w.turns.wait("answer %s %s", e.url, id)
	e.mu.Lock()
	defer e.mu.Unlock()
	if r.Signature != nil || id == "" {
		e.w.fail(fmt.Errorf("%s got a request with the signature error %v and the messageId %q", e.url, r.Signature, id))
	}
	user, _ := r.JSON["userId"].(string)
	e.w.orders.request(e.destination, user, id)
	b := e.behavior
	if b == flaky && e.rnd.IntN(2) == 0 {
		b = healthy
	}
	switch b {
	case down:
		if e.rnd.IntN(2) == 0 {
			return step.Close()
		}
		return step.Answer(503)
	case refusing:
		return step.Answer(404)
	case flaky:
		switch e.rnd.IntN(6) {
		case 0:
			return step.Answer(500)
		case 1:
			return step.Answer(429).With("Retry-After", fmt.Sprint(e.rnd.IntN(300)))
		case 2:
			return step.Close()
		case 3:
			return step.Garbage()
		case 4:
			return step.Hang()
		}
		e.w.ledger.receive(e.url, id) // but the answer comes after the timeout
		e.w.ledger.unconfirm(e.url, id)
		return step.Answer(200).After(6 * time.Second)
	}
	e.w.ledger.receive(e.url, id)
	answer := step.Answer(200 + e.rnd.IntN(5))
	if b == slow {
		answer = answer.After(time.Duration(e.rnd.Int64N(int64(4 * time.Second))))
	}
	return answer
}
