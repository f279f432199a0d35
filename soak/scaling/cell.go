package main

import (
	"math"
	"math/rand/v2"
	"time"
)

// A cell is one store and the nodes that share it. Healthy destinations are simulated together,
// as one flow. A destination that is down, or has been down, has a lane of its own in each node
// that serves it.
type cell struct {
	*scenario
	random *rand.Rand

	rate    float64 // deliveries a second of the flow, the mean of the day
	busy    float64 // destinations of the flow that are busy at once, the mean of the day
	backlog float64 // deliveries of the flow that wait for processors, the store or slots
	active  float64 // attempts in flight
	narrow  []narrow
	out     []part // parts that the outage will hit
	troubled
	result cellResult
}

// A part is the share of a destination's deliveries that one cell gets. Most destinations have
// one part. A destination with more deliveries than one store should have is divided into several
// parts.
type part struct {
	rate float64 // deliveries a second, the mean of the day
}

// A narrow is a part that needs more than 90 % (tight) of its slots at the peak. It may even
// need more slots than it has.
type narrow struct {
	part
	backlog float64
}

// troubled has the lanes of destinations that are down, or have been down.
type troubled struct {
	lanes []*lane
	rates []float64 // deliveries a second of each lane
	first int       // the lane that the next step begins with
}

// step is the time step with which the flow is simulated. Lanes are simulated event by
// event.
const step = time.Second

// tight is the fraction of its slots that a part may need at the peak. A part that needs a larger
// fraction is narrow.
const tight = 0.9

// add adds a part to the cell. The argument down says that the outage will hit the part.
func (c *cell) add(p part, down bool) {
	latency := c.latency.average().Seconds()
	switch {
	case down:
		c.out = append(c.out, p)
	case p.rate*c.peak*latency > tight*c.slots(c.laneShare(c.inFlight())):
		c.narrow = append(c.narrow, narrow{part: p})
	default:
		c.rate += p.rate
		c.busy += -math.Expm1(-p.rate * latency)
	}
}

// slots is how many attempts the cell may make at once for one destination. The argument
// share is how many slots each node gives to that destination.
func (c *cell) slots(share float64) float64 {
	return float64(c.owners()) * min(float64(c.maxConcurrent), share)
}

// warm is how long before the outage the simulation of lanes begins. So when the outage begins,
// the lanes already have attempts in flight.
const warm = 10 * time.Second

// run simulates the whole scenario.
func (c *cell) run() {
	for now := time.Duration(0); now < c.length; now += step {
		if now == c.outage.at-warm {
			c.singleOut(now)
		}
		c.advance(now, now+step)
	}
}

// While the breaker of a lane is open, the simulation advances the lane only once in naps steps.
// This saves time, because such a lane does next to nothing. It changes no times: those of a lane's
// events do not depend on the steps.
const naps = 10

// sleeps reports whether the simulation skips lane i in the step that ends at the time to.
func (c *cell) sleeps(i int, to time.Duration) bool {
	return c.lanes[i].open && to < c.outage.at+c.outage.length && (int(to/step)+i)%naps != 0
}

// singleOut makes lanes of the parts that the outage will hit.
func (c *cell) singleOut(now time.Duration) {
	r := receiver{latency: c.latency, failures: c.failures, from: c.outage.at, to: c.outage.at + c.outage.length, hangs: c.outage.hangs}
	for _, p := range c.out {
		for range c.owners() {
			l := newLane(c.maxConcurrent, r, c.random)
			l.touched, l.told = now, now
			c.lanes = append(c.lanes, l)
			c.rates = append(c.rates, p.rate/float64(c.owners()))
		}
	}
}

// advance simulates the step that begins at the time now and ends at the time to.
func (c *cell) advance(now, to time.Duration) {
	dt := (to - now).Seconds()
	load := c.curve(now)
	latency := c.latency.average().Seconds()
	again := 1 + c.failures // attempts of one delivery to a healthy destination

	// Calls are accepted first; deliveries get the processor time that is left.
	fresh := float64(poisson(c.rate*load*dt, c.random))
	came := fresh
	lanes := 0.0
	for i, l := range c.lanes {
		if c.sleeps(i, to) {
			continue
		}
		n := poisson(c.rates[i]*load*(to-l.told).Seconds(), c.random)
		l.arrive(l.told, to, n)
		l.told = to
		lanes += float64(n)
	}
	if len(c.lanes) == 0 && now < c.outage.at {
		// These destinations are healthy, and have no lanes yet.
		for _, p := range c.out {
			fresh += p.rate * load * dt
		}
		came = fresh
	}
	for i := range c.narrow {
		n := c.narrow[i].rate * load * dt
		c.narrow[i].backlog += n
		came += n
	}
	came += lanes
	cpu := float64(c.nodes*c.cores)*dt - came/c.fanOut*c.store.accept.Seconds()
	budget := max(min(cpu/c.store.deliver.Seconds(), c.most*dt, float64(c.nodes*c.maxInFlight)/latency*dt), 0)
	whole := budget

	// The flow, which is the deliveries of destinations with little to do, takes its part of the
	// budget first. The narrow parts share the rest.
	c.backlog += fresh
	served := min(c.backlog, budget/again)
	c.backlog -= served
	budget -= served * again
	inFlight := served * again * latency / dt
	waiting := c.backlog
	slots := c.slots(float64(c.share(load, c.active)))
	for i := range c.narrow {
		n := &c.narrow[i]
		most := min(n.backlog, slots/latency*dt/again, budget/again)
		n.backlog -= most
		budget -= most * again
		inFlight += most * again * latency / dt
		waiting += n.backlog
	}
	for _, l := range c.lanes {
		inFlight += float64(len(l.active))
	}
	c.active = inFlight
	share := c.share(load, inFlight)
	held := 0
	for i := range c.lanes {
		l := c.lanes[(i+c.first)%len(c.lanes)]
		held += l.backlog()
		if l.told < to {
			continue
		}
		l.share = share
		most := int(budget / float64(len(c.lanes)-i))
		n, ok := l.drain(now, to, most)
		if !ok {
			n = l.advance(to, most)
		}
		budget -= float64(n)
	}
	c.first++
	waiting += float64(held)
	c.result.note(c, now, usage{
		cpu:      1 - (cpu-(whole-budget)*c.store.deliver.Seconds())/(float64(c.nodes*c.cores)*dt),
		store:    (whole - budget) / (c.most * dt),
		slots:    inFlight / float64(c.nodes*c.maxInFlight),
		inFlight: inFlight,
		waiting:  waiting,
		came:     came,
		sent:     whole - budget,
	})
	if to > c.outage.at+c.outage.length {
		c.rejoin(to)
	}
}

// share is how many slots a lane gets while other lanes are busy. The formula follows the
// share of a lane in package schedule.
func (c *cell) share(load, inFlight float64) int {
	busy := c.busy * load / float64(c.nodes)
	for _, l := range c.lanes {
		if len(l.active) > 0 {
			busy += 1 / float64(c.nodes)
		}
	}
	return int(max(math.Ceil(0.75*float64(c.maxInFlight)/max(busy, 1)), c.laneShare(inFlight/float64(c.nodes))))
}

// rejoin adds the new deliveries of recovered lanes to the flow. It removes a lane when all
// deliveries of the outage are settled.
func (c *cell) rejoin(now time.Duration) {
	kept := 0
	for i, l := range c.lanes {
		ended := l.recover(now)
		if l.recovered == now {
			c.rate += c.rates[i]
			c.busy += -math.Expm1(-c.rates[i] * c.latency.average().Seconds())
			c.rates[i] = 0
		}
		if ended {
			c.result.end(l)
			continue
		}
		c.lanes[kept], c.rates[kept] = l, c.rates[i]
		kept++
	}
	c.lanes, c.rates = c.lanes[:kept], c.rates[:kept]
}
