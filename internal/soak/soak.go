// Package soak lets a test run in two lengths: a short, repeatable one in every test run,
// and a long, random one under the soak command.
//
//	go run ./soak list              # list all soaks
//	go run ./soak kill -for 10m     # run the soak "kill" for ten minutes
//	go run ./soak kill -seed 42     # repeat it with a printed seed
package soak

import (
	"flag"
	"iter"
	"math/rand/v2"
	"testing"
	"time"
)

var (
	length = flag.Duration("soak.for", 0, "how long a soak runs; 0 in an ordinary test run")
	seed   = flag.Uint64("soak.seed", 0, "the seed of a soak; 0 draws one")
)

// On reports whether the soak command runs this test.
func On() bool { return *length > 0 || *seed > 0 }

// Long skips the test in an ordinary test run. In a run by the soak command, it returns how long
// the soak must run, and the seed for all its random choices. It logs the seed. The string name
// is the argument of the soak command that selects this soak.
func Long(t testing.TB, name string) (time.Duration, uint64) {
	t.Helper()
	Only(t, name)
	s := *seed
	if s == 0 {
		s = rand.Uint64()
	}
	t.Logf("go run ./soak %s -seed %d", name, s)
	return max(*length, time.Second), s
}

// Only skips the test in an ordinary test run. The string name is the argument of the soak
// command that selects this soak.
func Only(t testing.TB, name string) {
	t.Helper()
	if !On() {
		t.Skipf("takes minutes: go run ./soak %s", name)
	}
}

// Seeds yields the seeds for a test that runs once per seed. It stops when the test has
// failed, and then logs the last seed. In an ordinary test run the seeds are 1 to n. Under
// the soak command, the test gets the seed of the command line or, without such a seed,
// random seeds until the time is over.
func Seeds(t testing.TB, n int) iter.Seq[uint64] {
	t.Helper()
	return func(yield func(uint64) bool) {
		runs, end := 0, time.Now().Add(*length)
		var s uint64
		defer func() { // runs even if the test ends its goroutine
			if t.Failed() {
				t.Logf("seed %d (-soak.seed)", s)
			} else if *length > 0 {
				t.Logf("%d seeds", runs)
			}
		}()
		for !t.Failed() {
			switch {
			case *seed > 0:
				s, n = *seed, 1
			case *length > 0:
				if s, n = rand.Uint64(), runs+1; !time.Now().Before(end) {
					return
				}
			default:
				s++
			}
			if runs++; runs > n || !yield(s) {
				return
			}
		}
	}
}
