package portal

import (
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

// within counts a request against a limit.
func (q *request) within(l *limit) error {
	wait := l.take(q.tenant)
	if wait == 0 {
		return nil
	}
	seconds := int(wait/time.Second) + 1
	q.w.Header().Set("Retry-After", fmt.Sprint(seconds))
	return &failure{http.StatusTooManyRequests, "too_often", fmt.Sprintf("That was often. Try again in %d s.", seconds), nil}
}
