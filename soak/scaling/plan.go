package main

import (
	"math"
	"time"
)

// A load is what is to be done.
type load struct {
	name         string
	calls        float64 // a day
	fanOut       float64 // destinations of a call
	destinations int
	exponent     float64 // of Zipf's law of the destinations' rates
	most         float64 // calls a second of a destination, by the mean of the day
	peak         float64 // of the day, to its mean
	body         int     // bytes
	latency      latency
	failures     float64 // the share of attempts that fail while all is well
}

// A plan is what a load needs: cells of one store each, with the same number of
// nodes.
type plan struct {
	*load
	store *store

	cells, nodes, cores int     // nodes of a cell, cores of a node
	databaseCores       int     // of a store that is a server
	most                float64 // deliveries a second of a cell's store
	parts               float64 // of the busiest destination
	maxConcurrent       int
	maxInFlight         int
	connections         int // of a node to receivers, busy and idle
	memory              float64
	disk                float64 // of a cell, for an hour in which nothing is delivered
	egress              float64 // bytes a day
}

// mostOfADestination is the deliveries a second of a destination, at the peak, that are
// left to one cell. What has more goes to several.
const mostOfADestination = 2000

// rate is the deliveries a second at the peak.
func (l *load) rate() float64 { return l.calls * l.fanOut / 86_400 * l.peak }

// rates returns the deliveries a second of each destination by the mean of the
// day, the highest first.
func (l *load) rates() []float64 {
	return zipf(l.destinations, l.exponent, l.calls*l.fanOut/86_400, l.most)
}

// newPlan does the arithmetic of docs/scaling.md.
func newPlan(l *load, s *store, cores int) *plan {
	p := &plan{load: l, store: s, cores: cores, most: s.most}
	rate, again := l.rate(), 1+l.failures

	// Processors: what a call takes, for all calls at the peak.
	work := rate/l.fanOut*s.accept.Seconds() + rate*again*s.deliver.Seconds()
	nodes := math.Ceil(work/target/float64(cores)) + 1 // one may be away
	if s.server {
		databases := rate / target / s.most // cores of them
		p.databaseCores = 2
		for p.databaseCores < s.cores && float64(p.databaseCores) < databases {
			p.databaseCores *= 2
		}
		p.most = s.most * float64(p.databaseCores)
		p.cells = int(math.Ceil(databases / float64(p.databaseCores)))
		p.nodes = int(max(math.Ceil(nodes/float64(p.cells)), 2))
	} else {
		p.cells, p.nodes = int(max(nodes, math.Ceil(rate/target/s.most))), 1
	}
	perCell := rate / float64(p.cells)

	// Slots: Little's law, twice over, and for a lane the eighth of what is
	// free above a quarter that package webhook leaves it beside others.
	latency := l.latency.average().Seconds()
	hottest := l.rates()[0] * l.peak
	p.parts = math.Ceil(hottest / mostOfADestination)
	p.maxConcurrent = max(64, int(math.Ceil(2*hottest/p.parts/float64(p.owners())*latency)))
	inFlight := p.inFlight()
	p.maxInFlight = powerOfTwo(max(1024, 2*inFlight, (inFlight+8*float64(p.maxConcurrent))/0.75))

	// Each destination keeps a connection, and one for each attempt at once.
	p.connections = int(min(float64(l.destinations)*p.parts/float64(p.cells)+2*inFlight, 2*float64(p.maxInFlight)))
	p.memory = 150e6 + 40e3*float64(p.connections) + 2e3*float64(l.destinations)/float64(p.cells) + 4*float64(l.body)*inFlight
	p.disk = perCell * time.Hour.Seconds() * float64(l.body+s.waiting)
	p.egress = l.calls * l.fanOut * again * float64(l.body+head+packets)
	return p
}

// owners is how many nodes of a cell serve a destination.
func (p *plan) owners() int {
	if p.store.owned {
		return 1
	}
	return p.nodes
}

// inFlight is the attempts of a node at once, at the peak, by Little's law.
func (p *plan) inFlight() float64 {
	return p.rate() * (1 + p.failures) / float64(p.cells*p.nodes) * p.latency.average().Seconds()
}

// laneShare is the part of a node's slots that a destination may have while many
// others are busy: an eighth of what is free above a quarter.
func (p *plan) laneShare(inFlight float64) float64 {
	most := float64(p.maxInFlight)
	return max((most-inFlight-most/4)/8, 1)
}

func powerOfTwo(least float64) int { return 1 << int(math.Ceil(math.Log2(least))) }

// cost returns dollars a month: for nodes and stores with their disks, and for
// what leaves.
func (p *plan) cost() (machines, egress float64) {
	cores := p.cells * (p.nodes*p.cores + p.store.copies*p.databaseCores)
	disks := float64(p.cells*p.store.copies) * p.disk
	machines = float64(cores)*coreHour*month + disks/1e9*gbMonth
	return machines, p.egress / 1e9 * month / 24 * egressGB
}
