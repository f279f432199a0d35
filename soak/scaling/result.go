package main

import (
	"math"
	"slices"
	"time"
)

// usage is what a cell uses and does in a step.
type usage struct {
	cpu, store, slots float64 // the share in use, 0 to 1
	inFlight          float64
	waiting           float64 // deliveries that wait, due or not
	came, sent        float64 // deliveries that came, and attempts that were sent
}

// A cellResult sums up the day of a cell.
type cellResult struct {
	minutes                []usage // means of each minute, but waiting as at the minute's end
	recovered, settled     []time.Duration
	done, dead, attempts   int // in lanes
	failures               int
	left                   int     // lanes that did not recover
	came, sent, overloaded float64 // overloaded is the seconds in which the flow had a backlog
}

// note adds the usage of a step.
func (r *cellResult) note(c *cell, now time.Duration, u usage) {
	if now%time.Minute == 0 {
		r.minutes = append(r.minutes, usage{})
	}
	m := &r.minutes[len(r.minutes)-1]
	share := step.Seconds() / 60
	m.cpu += u.cpu * share
	m.store += u.store * share
	m.slots += u.slots * share
	m.inFlight += u.inFlight * share
	m.came += u.came * share
	m.sent += u.sent * share
	m.waiting = u.waiting
	r.came += u.came
	r.sent += u.sent
	if c.backlog >= 1 {
		r.overloaded += step.Seconds()
	}
}

// end adds the numbers of a lane that has recovered, or of any lane at the end of the day.
func (r *cellResult) end(l *lane) {
	up := l.receiver.to
	r.recovered = append(r.recovered, max(l.recovered-up, 0))
	r.settled = append(r.settled, max(l.settled-up, 0))
	r.done += l.done
	r.dead += l.dead
	r.attempts += l.attempts
	r.failures += l.failures
}

// A result sums up a scenario.
type result struct {
	*scenario
	// The field most has the highest cpu, store, slots and inFlight that any cell has in any
	// minute. The field mean has the means of cpu, store and slots over the day and all cells.
	most, mean usage
	waiting    []float64 // in all cells, at the end of each minute
	peak       float64   // the most in waiting
	fullest    float64   // the most that waited in one cell
	peakAt     time.Duration

	lanes int // lanes of destinations that were down, one in each node that serves the destination

	// Times since the end of the outage. At the time half, half of the lanes had an empty backlog,
	// and at the time all, every lane had. At the time settled, the last delivery of the backlog
	// was settled.
	half, all, settled time.Duration

	failures   float64 // failed attempts of lanes
	dead, left int
	overloaded float64 // the largest cellResult.overloaded of any cell
}

func merge(s *scenario, cells []*cell) *result {
	r := &result{scenario: s}
	var recovered, settled []time.Duration
	for _, c := range cells {
		c.result.left = len(c.lanes) // the lanes that have not recovered by the end of the day
		for _, l := range c.lanes {
			if l.recovered == 0 {
				l.recovered = s.length
			}
			c.result.end(l)
		}
		cr := &c.result
		recovered = append(recovered, cr.recovered...)
		settled = append(settled, cr.settled...)
		r.failures += float64(cr.failures)
		r.dead += cr.dead
		r.left += cr.left
		r.overloaded = max(r.overloaded, cr.overloaded)
		if r.waiting == nil {
			r.waiting = make([]float64, len(cr.minutes))
		}
		share := 1 / float64(len(cells)*len(cr.minutes))
		for i, m := range cr.minutes {
			r.waiting[i] += m.waiting
			r.fullest = max(r.fullest, m.waiting)
			r.most.cpu = max(r.most.cpu, m.cpu)
			r.most.store = max(r.most.store, m.store)
			r.most.slots = max(r.most.slots, m.slots)
			r.most.inFlight = max(r.most.inFlight, m.inFlight)
			r.mean.cpu += m.cpu * share
			r.mean.store += m.store * share
			r.mean.slots += m.slots * share
		}
	}
	for i, n := range r.waiting {
		if n > r.peak {
			r.peak, r.peakAt = n, time.Duration(i+1)*time.Minute
		}
	}
	r.lanes = len(recovered)
	r.half, r.all = quantile(recovered, 0.5), quantile(recovered, 1)
	r.settled = quantile(settled, 1)
	return r
}

func quantile(ds []time.Duration, q float64) time.Duration {
	if len(ds) == 0 {
		return 0
	}
	slices.Sort(ds)
	return ds[int(math.Ceil(q*float64(len(ds))))-1]
}
