package portal

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// maxCounted is how many tenants a limit counts in a minute. With more, the minute begins anew.
const maxCounted = 64 << 10

// A limit bounds how often each tenant does something in a minute.
type limit struct {
	perMinute int

	mu    sync.Mutex // guards the fields below
	ends  time.Time  // when the current minute ends
	count map[string]int
}

func newLimit(perMinute int) *limit { return &limit{perMinute: perMinute, count: make(map[string]int)} }

// take counts one more use, or returns how long to wait for the next one that is allowed.
func (l *limit) take(tenant string) (wait time.Duration) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !now.Before(l.ends) || len(l.count) >= maxCounted {
		l.ends = now.Add(time.Minute)
		clear(l.count)
	}
	if l.count[tenant] >= l.perMinute {
		return l.ends.Sub(now)
	}
	l.count[tenant]++
	return 0
}

// The requests of one tenant take few processors and few connections to the store, because
// deliveries need them, too. A request that waits for a receiver, or sends what failed again, first
// ends its turn. Sending again what failed may take minutes: it has a place among maxSteps for each
// of its commits, and a tenant does it once at the same time.
const (
	maxAtOnce = 2  // requests of a tenant that are answered at the same time
	maxInLine = 64 // those requests, and the ones that wait for their turn
	maxSteps  = 4  // commits, of all tenants, that send failed deliveries again at the same time
)

// turns lets few requests of each tenant go on at the same time.
type turns struct {
	mu sync.Mutex // guards of
	of map[string]*line
}

// A line is the requests of one tenant that are answered or wait.
type line struct {
	length int           // guarded by turns.mu
	turn   chan struct{} // has an element for each request that is answered
}

// enter waits for the turn of a request. It returns a function that ends the turn, and may be called
// again, or nil if there are too many requests or ctx is done.
func (t *turns) enter(ctx context.Context, tenant string) (leave func()) {
	t.mu.Lock()
	l := t.of[tenant]
	if l == nil {
		l = &line{turn: make(chan struct{}, maxAtOnce)}
		t.of[tenant] = l
	}
	if l.length == maxInLine {
		t.mu.Unlock()
		return nil
	}
	l.length++
	t.mu.Unlock()
	quit := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if l.length--; l.length == 0 {
			delete(t.of, tenant)
		}
	}
	select {
	case l.turn <- struct{}{}:
		return sync.OnceFunc(func() {
			<-l.turn
			quit()
		})
	case <-ctx.Done():
		quit()
		return nil
	}
}

// within counts a request against a limit.
func (q *request) within(l *limit) error {
	wait := l.take(q.tenant)
	if wait == 0 {
		return nil
	}
	return tooOften(q.w, wait)
}

// tooOften is the answer to a request that may be sent again after wait.
func tooOften(w http.ResponseWriter, wait time.Duration) *failure {
	return tooMany(w, int(wait/time.Second)+1, "too_often", "That was often.")
}

// tooMany is the answer to a request that may be sent again after some seconds.
func tooMany(w http.ResponseWriter, seconds int, code, why string) *failure {
	w.Header().Set("Retry-After", fmt.Sprint(seconds))
	return &failure{http.StatusTooManyRequests, code, fmt.Sprintf("%s Try again in %d s.", why, seconds), nil}
}
