package collector

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Within each paceTime, at least leastPace bytes of a body have to arrive, or its end. The
// slowest mobile networks do more than 4 KB in 5 s. So the memory of a body that has stopped
// arriving is free after paceTime, and not only after the ReadTimeout of the http.Server.
const (
	paceTime  = 5 * time.Second
	leastPace = 4 << 10
)

// A pacemaker checks each body that is being read every paceTime. It has one timer for all of
// them: most bodies arrive at once, and a timer for each would cost more than reading it.
type pacemaker struct {
	mu     sync.Mutex
	bodies map[*pacedBody]struct{}
	armed  bool // a timer runs
}

// A pacedBody is the body of a request that is being read. A read returns an error if the
// body comes too slowly, or the context of the request ends; by itself, net/http would wait
// until the connection ends. The read deadline of the http.Server still holds.
type pacedBody struct {
	w       http.ResponseWriter
	r       *http.Request
	arrived atomic.Int64 // bytes

	// Guarded by pacemaker.mu.
	before  int64     // bytes that had arrived at the last check
	next    time.Time // of the next check
	tooSlow bool
}

// Read implements [io.Reader].
func (b *pacedBody) Read(p []byte) (int, error) {
	n, err := b.r.Body.Read(p)
	b.arrived.Add(int64(n))
	return n, err
}

// watch checks the body of r until done is called, which reports whether the body came too
// slowly.
func (m *pacemaker) watch(w http.ResponseWriter, r *http.Request) (b *pacedBody, done func() (tooSlow bool)) {
	b = &pacedBody{w: w, r: r, next: time.Now().Add(paceTime)}
	m.mu.Lock()
	m.bodies[b] = struct{}{}
	m.arm(paceTime)
	m.mu.Unlock()
	unwatch := context.AfterFunc(r.Context(), func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.interrupt(b)
	})
	return b, func() bool {
		unwatch()
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.bodies, b)
		return b.tooSlow
	}
}

// arm starts a timer that calls check, unless one runs. The caller holds m.mu.
func (m *pacemaker) arm(after time.Duration) {
	if !m.armed {
		m.armed = true
		time.AfterFunc(after, m.check)
	}
}

// check interrupts the bodies that are due for a check and came too slowly.
func (m *pacemaker) check() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.armed = false
	now := time.Now()
	next := now.Add(paceTime)
	for b := range m.bodies {
		if !now.Before(b.next) {
			arrived := b.arrived.Load()
			if arrived-b.before < leastPace {
				b.tooSlow = true
				m.interrupt(b)
			}
			b.before, b.next = arrived, now.Add(paceTime)
		}
		if b.next.Before(next) {
			next = b.next
		}
	}
	if len(m.bodies) > 0 {
		m.arm(max(next.Sub(now), paceTime/10))
	}
}

// interrupt makes the reads of a body fail, unless the body has been read: then the
// connection belongs to the next request. The caller holds m.mu.
func (m *pacemaker) interrupt(b *pacedBody) {
	if _, ok := m.bodies[b]; ok {
		// A ResponseWriter without a connection returns an error; its body does not block.
		_ = http.NewResponseController(b.w).SetReadDeadline(time.Unix(1, 0))
	}
}
