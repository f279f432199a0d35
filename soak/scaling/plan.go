package main

import (
	"math"
	"time"
)

// A load is the work that a plan is made for.
type load struct {
	name         string
	calls        float64 // calls a day
	fanOut       float64 // deliveries of one call
	destinations int
	exponent     float64 // of Zipf's law, which the destinations' rates follow
	most         float64 // the most calls a second of one destination, the mean of the day
	peak         float64 // the highest rate of the day, divided by the mean
	body         int     // bytes of a body
	latency      latency
	failures     float64 // the share of attempts that fail at healthy destinations
}

// A plan is the machines that a load needs: cells of one store each, all with the same
// number of nodes.
type plan struct {
	*load
	store *store

	cells, nodes, cores int     // nodes are per cell, cores per node
	databaseCores       int     // cores of the store, if it is a server
	most                float64 // deliveries a second that a cell's store takes
	parts               float64 // cells that share the busiest destination
	maxConcurrent       int
	maxInFlight         int
	connections         int // from a node to receivers, busy and idle
	memory              float64
	disk                float64 // bytes of a cell, for an hour in which nothing is delivered
	egress              float64 // bytes a day
}

// mostOfADestination bounds the deliveries a second that one cell gets of one destination at the
// peak. A destination with more deliveries is divided among several cells.
const mostOfADestination = 2000

// rate is deliveries a second at the peak.
func (l *load) rate() float64 { return l.calls * l.fanOut / 86_400 * l.peak }

// rates returns the rate of each destination, the highest first. A rate is the mean
// number of deliveries a second over the day.
func (l *load) rates() []float64 {
	return zipf(l.destinations, l.exponent, l.calls*l.fanOut/86_400, l.most)
}

// newPlan does the arithmetic of docs/scaling.md.
func newPlan(l *load, s *store, cores int) *plan {
	p := &plan{load: l, store: s, cores: cores, most: s.most}
	rate, again := l.rate(), 1+l.failures

	// Processors: the time for all calls and attempts of a second at the peak.
	work := rate/l.fanOut*s.accept.Seconds() + rate*again*s.deliver.Seconds()
	nodes := math.Ceil(work/target/float64(cores)) + 1 // one more, because a node may be down
	if s.server {
		databases := rate / target / s.most // cores of all databases
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

	// Slots: at least twice the attempts in flight, which follow from Little's law. They must also
	// suffice for the busiest destination: laneShare, the share that package schedule leaves to one
	// lane, must reach maxConcurrent. The last term of max is that condition, solved for
	// maxInFlight.
	latency := l.latency.average().Seconds()
	hottest := l.rates()[0] * l.peak
	p.parts = math.Ceil(hottest / mostOfADestination)
	p.maxConcurrent = max(64, int(math.Ceil(2*hottest/p.parts/float64(p.owners())*latency)))
	inFlight := p.inFlight()
	p.maxInFlight = powerOfTwo(max(1024, 2*inFlight, (inFlight+8*float64(p.maxConcurrent))/0.75))

	// Connections of a node to receivers: one for each of its destinations, and two for each
	// attempt in flight. The forwarder bounds them to twice maxInFlight.
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

// inFlight returns how many attempts a node makes at once at the peak. By Little's law, that is
// its attempts a second, times the mean time of an attempt.
func (p *plan) inFlight() float64 {
	return p.rate() * (1 + p.failures) / float64(p.cells*p.nodes) * p.latency.average().Seconds()
}

// laneShare is how many of a node's slots one destination may have while many others are busy. A
// quarter of the slots is kept back. The destination gets an eighth of the other free slots.
func (p *plan) laneShare(inFlight float64) float64 {
	most := float64(p.maxInFlight)
	return max((most-inFlight-most/4)/8, 1)
}

func powerOfTwo(least float64) int { return 1 << int(math.Ceil(math.Log2(least))) }

// cost returns dollars a month: for nodes and stores with their disks, and for outgoing
// bytes.
func (p *plan) cost() (machines, egress float64) {
	cores := p.cells * (p.nodes*p.cores + p.store.copies*p.databaseCores)
	disks := float64(p.cells*p.store.copies) * p.disk
	machines = float64(cores)*coreHour*month + disks/1e9*gbMonth
	return machines, p.egress / 1e9 * month / 24 * egressGB
}
