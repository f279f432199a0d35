package feed

import (
	"strings"
	"time"

	"github.com/hookferry/analytics/webhook"
)

// counts has the numbers of one destination, or of all destinations together, over time.
type counts struct {
	id      string
	levels  [3]level
	errors  [hourSteps]map[webhook.Reason]int64 // failed requests of the last hour, a ring buffer with the steps of Day
	used    time.Time
	leftOut int64 // events that the budget left out

	second int64 // the latest second in which an event was told, in Unix time
	shown  int   // how many events were told in that second
}

// levels has the resolutions: FiveMinutes in steps of a second, Hour in steps of ten seconds, and Day
// in steps of five minutes.
var levels = [...]struct {
	seconds int64
	steps   int
}{{1, 300}, {10, 360}, {300, 288}}

// hourSteps is how many steps of Day an hour has.
const hourSteps = 12

// A level has the steps of one resolution. The latest step is open: new events still count in it.
type level struct {
	seconds int64
	cells   []cell // a ring buffer of the steps that are over
	open    int64  // index of the open step, counted since 1970
	now     cell   // the open step
	latency histogram
}

// A cell has the numbers of one step. It takes 32 bytes.
type cell struct {
	// known is false for a step from before the counts began.
	known                              bool
	timed                              bool // p50 and p99 are known
	accepted, delivered, retried, dead uint32
	waiting                            int32  // at the end of the step, -1 if unknown
	p50, p99                           uint32 // microseconds
}

// newCounts returns counts that are zero from the time since until now.
func newCounts(id string, since, now time.Time) *counts {
	c := &counts{id: strings.Clone(id), used: now}
	for i, l := range levels {
		c.levels[i] = level{seconds: l.seconds, cells: make([]cell, l.steps), open: since.Unix() / l.seconds, now: cell{known: true, waiting: -1}}
	}
	c.advance(now)
	return c
}

func (l *level) cell(index int64) *cell { return &l.cells[index%int64(len(l.cells))] }

// closed returns the open step as it would be if it ended now.
func (l *level) closed() cell {
	c := l.now
	if l.latency.n > 0 {
		c.timed = true
		c.p50, c.p99 = l.latency.quantile(50), l.latency.quantile(99)
	}
	return c
}

// count calls add for each level. Its open step contains now, or is the latest one if the clock was
// set back.
func (c *counts) count(now time.Time, add func(*level)) {
	c.advance(now)
	for i := range c.levels {
		add(&c.levels[i])
	}
}

// advance closes the steps that are over, and opens those that contain now.
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
		closed := l.closed()
		*l.cell(l.open) = closed
		if closed.timed {
			l.latency = histogram{}
		}
		for n := max(l.open+1, index-int64(len(l.cells))+1); n <= index; n++ {
			*l.cell(n) = cell{known: true, waiting: closed.waiting}
			if i == Day {
				c.errors[n%hourSteps] = nil
			}
		}
		l.open, l.now = index, cell{known: true, waiting: closed.waiting}
	}
}

// attempted counts an attempt. The argument again says that the delivery will be attempted again.
func (c *counts) attempted(now time.Time, a *webhook.Attempted, again bool) {
	ended := a.Outcome != webhook.OutcomeCutOff
	c.count(now, func(l *level) {
		if again {
			l.now.retried++
		}
		if ended {
			l.latency.add(a.Took)
		}
	})
	if ended && a.Reason != "" {
		step := &c.errors[c.levels[Day].open%hourSteps]
		if *step == nil {
			*step = make(map[webhook.Reason]int64)
		}
		(*step)[a.Reason]++
	}
}

func (c *counts) ended(now time.Time, reason webhook.Reason) {
	c.count(now, func(l *level) {
		if reason == "" {
			l.now.delivered++
		} else {
			l.now.dead++
		}
	})
}

func (c *counts) accepted(now time.Time, n int) {
	c.count(now, func(l *level) { l.now.accepted += uint32(n) })
}

func (c *counts) waits(now time.Time, n int) {
	c.count(now, func(l *level) { l.now.waiting = int32(min(n, 1<<31-1)) })
}

// quiet reports whether fewer than eventShare events were told within the current second.
func (c *counts) quiet(now time.Time) bool {
	return c != nil && (c.second != now.Unix() || c.shown < eventShare)
}

// countsOf returns the counts of a destination, and creates them if necessary. It returns nil if
// the bounds allow no more counts. The caller holds f.mu.
func (f *Feed) countsOf(destination string, now time.Time) *counts {
	c := f.destinations[destination]
	if c == nil {
		if len(f.destinations) >= f.bounds.destinations && !f.forget(now) {
			return nil
		}
		since := now
		if !f.forgot {
			since = f.since // no event of this destination has been missed
		}
		c = newCounts(destination, since, now)
		f.destinations[c.id] = c
	}
	c.used = now
	return c
}

// forget removes the counts of the destination that has had no event for the longest time, if that
// time is at least bounds.idle. It reports whether it removed any. It searches all counts, so it
// works at most once a second, and otherwise returns false.
func (f *Feed) forget(now time.Time) bool {
	if now.Unix() == f.looked {
		return false
	}
	f.looked = now.Unix()
	f.forgot = true
	var idle *counts
	for _, c := range f.destinations {
		if idle == nil || c.used.Before(idle.used) {
			idle = c
		}
	}
	if now.Sub(idle.used) < f.bounds.idle {
		return false
	}
	delete(f.destinations, idle.id)
	return true
}
