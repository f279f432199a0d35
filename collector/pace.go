package collector

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Within each paceTime, leastPace bytes of a body, or the end of the body, have to arrive. Even the
// slowest mobile networks transfer more than 4 KB in 5 s. So the memory of a body that has stopped
// arriving is free after paceTime, and not only after the ReadTimeout of the http.Server.
const (
	paceTime  = 5 * time.Second
	leastPace = 4 << 10
)

// A pacedBody is the body of a request that is being read. A read returns an error if the body
// arrives too slowly, or if the context of the request ends. Without these errors, a read would
// wait until the connection ends. The read deadline of the http.Server still applies.
type pacedBody struct {
	w       http.ResponseWriter
	r       *http.Request
	arrived atomic.Int64 // bytes

	before int64 // bytes that had arrived at the last check

	mu    sync.Mutex
	timer *time.Timer // timer of the next check
	done  bool        // the handler is done with the body; the connection may have the next request
}

// watchPace checks the pace of the body of r until the caller calls done.
func watchPace(w http.ResponseWriter, r *http.Request) (b *pacedBody, done func()) {
	b = &pacedBody{w: w, r: r}
	b.mu.Lock()
	b.timer = time.AfterFunc(paceTime, b.check)
	b.mu.Unlock()
	unwatch := context.AfterFunc(r.Context(), b.interrupt)
	return b, func() {
		unwatch()
		b.mu.Lock()
		defer b.mu.Unlock()
		b.timer.Stop()
		b.done = true
	}
}

// Read implements [io.Reader].
func (b *pacedBody) Read(p []byte) (int, error) {
	n, err := b.r.Body.Read(p)
	b.arrived.Add(int64(n))
	return n, err
}

// check interrupts the reading of the body if too little has arrived since the last check.
func (b *pacedBody) check() {
	arrived := b.arrived.Load()
	if arrived-b.before < leastPace {
		b.interrupt()
		return
	}
	b.before = arrived
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.done {
		b.timer.Reset(paceTime)
	}
}

// interrupt makes the reads of the body fail, unless the handler is done with the body.
func (b *pacedBody) interrupt() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.done {
		// An error means that the ResponseWriter has no deadlines, as in tests, in which reads do
		// not block.
		_ = http.NewResponseController(b.w).SetReadDeadline(time.Unix(1, 0))
	}
}
