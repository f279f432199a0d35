package simulation

import (
	"bytes"
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing/synctest"
	"time"
)

// A turns lets the goroutines of a bubble go on one at a time, so that a run repeats. At each entry
// point of the simulated world, a goroutine calls wait. Once all others are blocked, turns lets one
// of those that wait go on. The choice depends on the names, not on the order in which the
// goroutines came. The package comment says what this does not cover.
type turns struct {
	mu      sync.Mutex
	rnd     *rand.Rand
	waiting []turn
	came    sync.Cond // there is a new turn, or turns is closed
	closed  bool
	ended   chan struct{}

	began   time.Time
	trace   bytes.Buffer  // has a line for each turn
	latest  time.Duration // the real time of the latest turn
	longest time.Duration // the longest real time between two turns, 0 if the clock is not known
}

// A turn is a goroutine that waits.
type turn struct {
	name  string
	begin chan struct{}
}

// Each turn begins at an instant of its own, also in microseconds, to which the store rounds times. So
// no two turns set timers to the same instant: Go would fire these in random order.
const (
	shortestStep = time.Microsecond
	longestStep  = 20 * time.Microsecond
)

func newTurns(rnd *rand.Rand) *turns {
	t := &turns{rnd: rnd, ended: make(chan struct{}), began: time.Now(), latest: realTime()}
	t.came.L = &t.mu
	go t.run() // ended by close
	return t
}

func (t *turns) run() {
	defer close(t.ended)
	t.mu.Lock()
	defer t.mu.Unlock()
	for {
		for len(t.waiting) == 0 && !t.closed {
			t.came.Wait()
		}
		step := shortestStep + time.Duration(t.rnd.Int64N(int64(longestStep-shortestStep)))
		t.mu.Unlock()
		time.Sleep(step)
		synctest.Wait()
		t.mu.Lock()
		if t.closed {
			return
		}
		t.next()
	}
}

// next begins one of the turns that wait. The caller holds t.mu.
func (t *turns) next() {
	slices.SortStableFunc(t.waiting, func(a, b turn) int { return cmp.Compare(a.name, b.name) })
	i := t.rnd.IntN(len(t.waiting))
	chosen := t.waiting[i]
	t.waiting = slices.Delete(t.waiting, i, i+1)
	fmt.Fprintf(&t.trace, "%.9f %s (%d wait)\n", time.Since(t.began).Seconds(), chosen.name, len(t.waiting))
	now := realTime()
	t.longest, t.latest = max(t.longest, now-t.latest), now
	close(chosen.begin)
}

// wait waits for a turn of the caller. The arguments are its name, as for fmt.Sprintf: what the caller
// is about to do, in words that no other goroutine uses at the same time. When wait returns, all other
// goroutines of the bubble are blocked. The caller holds no lock, because a goroutine that waits for a
// sync.Mutex is not blocked in the sense of synctest.
func (t *turns) wait(format string, args ...any) {
	me := turn{fmt.Sprintf(format, args...), make(chan struct{})}
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		return
	}
	t.waiting = append(t.waiting, me)
	t.mu.Unlock()
	t.came.Signal()
	<-me.begin
}

// shuffle brings n elements into an order that the seed chooses.
func (t *turns) shuffle(n int, swap func(i, j int)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rnd.Shuffle(n, swap)
}

// note adds a line to the trace.
func (t *turns) note(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fmt.Fprintf(&t.trace, format+"\n", args...)
}

// close ends the turns. Goroutines that wait go on, and no others wait.
func (t *turns) close() {
	t.mu.Lock()
	t.closed = true
	for _, w := range t.waiting {
		close(w.begin)
	}
	t.waiting = nil
	t.mu.Unlock()
	t.came.Signal()
	<-t.ended
}
