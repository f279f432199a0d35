package main

import (
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// A scenario is a simulated day of a plan, with an outage.
type scenario struct {
	*plan
	outage outage
	length time.Duration
	seed   uint64
}

// An outage makes some destinations fail. By rank, these are first, first+every, first+2*every ...
type outage struct {
	every      int // of this many destinations, one fails
	first      int // rank of the first destination that fails; the busiest has rank 0
	at, length time.Duration
	hangs      bool
}

// curve returns the rate at a time of day, divided by the mean of the day. It is a
// cosine that is lowest at midnight and highest at noon.
func (s *scenario) curve(now time.Duration) float64 {
	return 1 - (s.peak-1)*math.Cos(2*math.Pi*now.Hours()/24)
}

// run simulates all cells. The same seed gives the same result.
func (s *scenario) run() *result {
	cells := make([]*cell, s.cells)
	for i := range cells {
		cells[i] = &cell{scenario: s, random: rand.New(rand.NewPCG(s.seed, uint64(i)))}
	}
	where := rand.New(rand.NewPCG(s.seed, math.MaxUint64)) // chooses cells, as a hash of the id would
	for i, r := range s.rates() {
		n := max(int(math.Ceil(r*s.peak/mostOfADestination)), 1)
		first := where.IntN(s.cells)
		down := s.outage.every > 0 && i%s.outage.every == s.outage.first
		for j := range n {
			cells[(first+j)%s.cells].add(part{r / float64(n)}, down)
		}
	}
	var next atomic.Int64
	var running sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		running.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(cells)); i = next.Add(1) - 1 {
				cells[i].run()
			}
		})
	}
	running.Wait()
	return merge(s, cells)
}
