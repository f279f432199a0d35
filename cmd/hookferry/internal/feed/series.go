package feed

import (
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
)

// Errors returns how many requests failed within the last hour, by reason. An empty destination
// means all destinations.
func (f *Feed) Errors(destination string) map[string]int64 {
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	by := make(map[string]int64)
	if c := f.lookUp(destination); c != nil {
		c.advance(now)
		for _, step := range c.errors {
			for reason, n := range step {
				by[string(reason)] += n
			}
		}
	}
	return by
}

// rateSeconds is how many seconds Rates covers.
const rateSeconds = 10

// Rates returns the numbers per second within the last ten whole seconds. An empty destination
// means all destinations.
func (f *Feed) Rates(destination string) api.Rates {
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.lookUp(destination)
	if c == nil {
		return api.Rates{}
	}
	c.advance(now)
	l := &c.levels[0]
	var sum api.Rates
	n := 0.0
	for i := l.open - rateSeconds; i < l.open; i++ {
		if step := l.cell(i); step.known {
			n++
			sum.Accepted += float64(step.accepted)
			sum.Delivered += float64(step.delivered)
			sum.Retried += float64(step.retried)
			sum.Dead += float64(step.dead)
		}
	}
	n = max(n, 1)
	return api.Rates{Accepted: sum.Accepted / n, Delivered: sum.Delivered / n, Retried: sum.Retried / n, Dead: sum.Dead / n}
}

// lookUp returns the counts of a destination, or nil if there are none. An empty destination means
// the counts of all.
func (f *Feed) lookUp(destination string) *counts {
	if destination == "" {
		return f.total
	}
	return f.destinations[destination]
}

// The ranges of Series. Each is an index of levels.
const (
	FiveMinutes = iota
	Hour
	Day
)

// Series returns the numbers of a destination over a range of time. An empty destination means all
// destinations. length is FiveMinutes, Hour or Day. The last step is not over yet.
func (f *Feed) Series(destination string, length int) api.Series {
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.lookUp(destination)
	if c == nil {
		// Either there was no event yet, or there are too many destinations to count each of them.
		since := now
		if !f.forgot && len(f.destinations) < f.bounds.destinations {
			since = f.since
		}
		c = newCounts(destination, since, now)
	}
	c.advance(now)
	l := &c.levels[length]
	n := len(l.cells)
	start := l.open - int64(n) + 1
	s := api.Series{
		Destination: destination,
		Start:       time.Unix(start*l.seconds, 0).UTC(),
		Step:        float64(l.seconds * 1000),
		Accepted:    make([]*float64, n), Delivered: make([]*float64, n), Retried: make([]*float64, n), Dead: make([]*float64, n),
		Waiting: make([]*float64, n), P50: make([]*float64, n), P99: make([]*float64, n),
	}
	for i := range n {
		step := *l.cell(start + int64(i))
		if i == n-1 {
			step = l.closed()
		}
		if !step.known {
			continue
		}
		value := func(v float64) *float64 { return &v }
		s.Accepted[i] = value(float64(step.accepted))
		s.Delivered[i] = value(float64(step.delivered))
		s.Retried[i] = value(float64(step.retried))
		s.Dead[i] = value(float64(step.dead))
		if step.waiting >= 0 {
			s.Waiting[i] = value(float64(step.waiting))
		}
		if step.timed {
			s.P50[i], s.P99[i] = value(float64(step.p50)/1000), value(float64(step.p99)/1000)
		}
	}
	return s
}
