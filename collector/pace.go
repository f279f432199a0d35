package collector

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// A body has to bring leastPace bytes, or its end, within each paceTime: 4 KB in 5 s is less
// than the slowest of mobile networks do. A client that sends nothing is given up after that
// time, and does not hold what it has sent until the server's ReadTimeout.
const (
	paceTime  = 5 * time.Second
	leastPace = 4 << 10
)

// A pacemaker looks at the bodies that are being read, each after every paceTime. It has one
// timer for all of them: most bodies are there at once, and a timer for each would cost more
// than reading it.
type pacemaker struct {
	mu     sync.Mutex
	bodies map[*pacedBody]struct{}
	armed  bool // there is a timer
}

// A pacedBody is the body of a request that is being read. Its reads end when it comes too
// slowly, and when the context of the request ends: net/http itself ends them only with the
// connection. The read deadline of the http.Server stays as it is.
type pacedBody struct {
	w       http.ResponseWriter
	r       *http.Request
	arrived atomic.Int64 // bytes

	// Guarded by pacemaker.mu.
	before  int64     // what had arrived when it was looked at last
	next    time.Time // when it is looked at again
	tooSlow bool
}

// Read implements [io.Reader].
func (b *pacedBody) Read(p []byte) (int, error) {
	n, err := b.r.Body.Read(p)
	b.arrived.Add(int64(n))
	return n, err
}

// watch begins to look at the body of r, until done. That reports whether the body came too
// slowly.
func (m *pacemaker) watch(w http.ResponseWriter, r *http.Request) (b *pacedBody, done func() (tooSlow bool)) {
	b = &pacedBody{w: w, r: r, next: time.Now().Add(paceTime)}
	m.mu.Lock()
	m.bodies[b] = struct{}{}
	m.arm(paceTime)
	m.mu.Unlock()
	forget := context.AfterFunc(r.Context(), func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.interrupt(b)
	})
	return b, func() bool {
		forget()
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.bodies, b)
		return b.tooSlow
	}
}

// arm has look called after a time, if it is not to be called before. The caller holds m.mu.
func (m *pacemaker) arm(after time.Duration) {
	if !m.armed {
		m.armed = true
		time.AfterFunc(after, m.look)
	}
}

// look looks at the bodies whose time it is.
func (m *pacemaker) look() {
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

// interrupt has reads of a body return, unless it has been read: then the connection is the
// next request's. The caller holds m.mu.
func (m *pacemaker) interrupt(b *pacedBody) {
	if _, ok := m.bodies[b]; ok {
		// Where there is no connection there is nothing to wait for.
		_ = http.NewResponseController(b.w).SetReadDeadline(time.Unix(1, 0))
	}
}
