package feed

import (
	"math"
	"strings"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/histogram"
)

// counts has the numbers of one destination, or of all, over time. Nil counts ignore events.
type counts struct {
	id      string
	levels  [3]level
	errors  [hourSteps]map[webhook.Reason]int64 // failed requests of the last hour, a ring buffer with the steps of Day
	used    time.Time
	leftOut int64 // events that were not kept
}

// The ranges of Series. Each is an index of levels.
const (
	FiveMinutes = iota
	Hour
	Day
)

// levels has the steps of each range.
var levels = [...]struct {
	seconds int64
	steps   int
}{{1, 300}, {10, 360}, {300, 288}}

// hourSteps is how many steps of Day an hour has.
const hourSteps = 12

// A level has the steps of one resolution. The latest step is open: new events still count in it.
type level struct {
	seconds int64
	cells   []cell                      // a ring buffer of the steps
	open    int64                       // index of the open step, counted since 1970
	now     *cell                       // the open step
	latency histogram.Durations[uint32] // of the open step
}

// A cell has the numbers of one step. It takes 32 bytes.
type cell struct {
	known                              bool // false for a step from before the counts began
	accepted, delivered, retried, dead uint32
	waiting                            int32  // at the end of the step, -1 if unknown
	p50, p99                           uint32 // microseconds, 0 if there was no request
}

// newCounts returns counts that are zero from the time since until now.
func newCounts(id string, since, now time.Time) *counts {
	c := &counts{id: strings.Clone(id), used: now}
	for i, of := range levels {
		l := &c.levels[i]
		*l = level{seconds: of.seconds, cells: make([]cell, of.steps), open: since.Unix() / of.seconds}
		l.now = l.cell(l.open)
		*l.now = cell{known: true, waiting: -1}
	}
	c.advance(now)
	return c
}

func (l *level) cell(index int64) *cell { return &l.cells[index%int64(len(l.cells))] }

// measure sets the latencies of the open step.
func (l *level) measure() {
	l.now.p50 = uint32(l.latency.Quantile(0.50) / time.Microsecond)
	l.now.p99 = uint32(l.latency.Quantile(0.99) / time.Microsecond)
}

// advance opens the steps that contain now. If the clock was set back, the latest steps stay open.
func (c *counts) advance(now time.Time) {
	if now.Unix() <= c.levels[0].open {
		return
	}
	for i := range c.levels {
		l := &c.levels[i]
		index := now.Unix() / l.seconds
		if index <= l.open {
			continue
		}
		l.measure()
		l.latency = histogram.Durations[uint32]{}
		waiting := l.now.waiting
		for n := max(l.open+1, index-int64(len(l.cells))+1); n <= index; n++ {
			*l.cell(n) = cell{known: true, waiting: waiting}
			if i == Day {
				c.errors[n%hourSteps] = nil
			}
		}
		l.open, l.now = index, l.cell(index)
	}
}

// add adds the first four numbers of a step to the open steps.
func (c *counts) add(now time.Time, more cell) {
	if c == nil {
		return
	}
	c.advance(now)
	for i := range c.levels {
		step := c.levels[i].now
		step.accepted += more.accepted
		step.delivered += more.delivered
		step.retried += more.retried
		step.dead += more.dead
	}
}

// answered counts a request. It is called after add.
func (c *counts) answered(a *webhook.Attempt) {
	if c == nil {
		return
	}
	for i := range c.levels {
		c.levels[i].latency.Add(time.Duration(a.Took))
	}
	if a.Reason != "" {
		step := &c.errors[c.levels[Day].open%hourSteps]
		if *step == nil {
			*step = make(map[webhook.Reason]int64)
		}
		(*step)[a.Reason]++
	}
}

// waits sets how many deliveries wait.
func (c *counts) waits(now time.Time, n int) {
	c.advance(now)
	for i := range c.levels {
		c.levels[i].now.waiting = int32(min(n, math.MaxInt32))
	}
}

// quiet reports whether there were up to eventShare events in this second. It is called after add.
func (c *counts) quiet() bool {
	if c == nil {
		return false
	}
	now := c.levels[0].now
	return now.accepted+now.delivered+now.retried+now.dead <= eventShare
}

// countsOf returns the counts of a destination, or nil if bounds.destinations other destinations
// have counts. The method waits makes room. The caller holds f.mu.
func (f *Feed) countsOf(destination string, now time.Time) *counts {
	c := f.destinations[destination]
	if c == nil {
		if len(f.destinations) >= f.bounds.destinations {
			f.missed = true
			return nil
		}
		c = f.newCounts(destination, now)
		f.destinations[c.id] = c
	}
	c.used = now
	return c
}

// newCounts returns zero counts for a destination that has none.
func (f *Feed) newCounts(destination string, now time.Time) *counts {
	if f.missed {
		return newCounts(destination, now, now)
	}
	return newCounts(destination, f.since, now) // no event of this destination has been missed
}

// lookUp returns the counts of a destination as of now, or nil if it has none. "" means all
// destinations. The caller holds f.mu.
func (f *Feed) lookUp(destination string) *counts {
	c := f.total
	if destination != "" {
		c = f.destinations[destination]
	}
	if c != nil {
		c.advance(time.Now())
	}
	return c
}

// Errors returns how many requests failed within the last hour, by reason. "" means all destinations.
func (f *Feed) Errors(destination string) map[string]int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	by := make(map[string]int64)
	if c := f.lookUp(destination); c != nil {
		for _, step := range c.errors {
			for reason, n := range step {
				by[string(reason)] += n
			}
		}
	}
	return by
}

// Rates returns the numbers per second of the last ten whole seconds. "" means all destinations.
func (f *Feed) Rates(destination string) api.Rates {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.lookUp(destination)
	if c == nil {
		return api.Rates{}
	}
	l := &c.levels[0]
	var sum api.Rates
	n := 0.0
	for i := l.open - 10; i < l.open; i++ {
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

// Series returns numbers over FiveMinutes, an Hour or a Day up to now. "" means all destinations.
func (f *Feed) Series(destination string, length int) api.Series {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.lookUp(destination)
	if c == nil {
		c = f.newCounts(destination, time.Now()) // there was no event yet, or there are too many destinations
	}
	l := &c.levels[length]
	l.measure()
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
		step := l.cell(start + int64(i))
		if !step.known {
			continue
		}
		s.Accepted[i], s.Delivered[i] = new(float64(step.accepted)), new(float64(step.delivered))
		s.Retried[i], s.Dead[i] = new(float64(step.retried)), new(float64(step.dead))
		if step.waiting >= 0 {
			s.Waiting[i] = new(float64(step.waiting))
		}
		if step.p99 > 0 {
			s.P50[i], s.P99[i] = new(float64(step.p50)/1000), new(float64(step.p99)/1000)
		}
	}
	return s
}
