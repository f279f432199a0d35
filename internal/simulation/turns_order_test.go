package simulation

import (
	"bytes"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
)

// Turns follow the seed and the names, not the order in which goroutines come. Only one goroutine at a
// time is between two turns.
func TestTurnsFollowTheSeed(t *testing.T) {
	run := func(seed uint64, order []int) (trace []byte) {
		synctest.Test(t, func(t *testing.T) {
			turns := newTurns(rand.New(rand.NewPCG(seed, 0)))
			var running sync.WaitGroup
			alone := 0 // not guarded: a turn is all that orders its changes
			for _, i := range order {
				running.Go(func() {
					for n := range 20 {
						turns.wait("%d of %d", n, i)
						if alone++; alone != 1 {
							t.Errorf("got %d goroutines in a turn, want 1", alone)
						}
						alone--
					}
				})
			}
			running.Wait()
			turns.close()
			turns.wait("after close") // does not wait
			trace = turns.trace.Bytes()
		})
		return trace
	}
	forth, back := run(1, []int{0, 1, 2, 3}), run(1, []int{3, 2, 1, 0})
	if !bytes.Equal(forth, back) || bytes.Count(forth, []byte("\n")) != 80 {
		t.Errorf("got the traces\n%s\nand\n%s\nwant 80 turns, and the same ones", forth, back)
	}
	if other := run(2, []int{0, 1, 2, 3}); bytes.Equal(forth, other) {
		t.Error("got the same trace for two seeds, want different ones")
	}
}
