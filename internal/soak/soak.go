// Package soak lets one test run in two lengths: a short, repeatable one in every
// test run, and a long, random one under the soak command.
//
//	go run ./soak list              # what there is
//	go run ./soak kill -for 10m     # one soak, for ten minutes
//	go run ./soak kill -seed 42     # the same again, from a printed seed
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

// On reports whether the soak command runs the test.
func On() bool { return *length > 0 || *seed > 0 }

// Long returns how long the soak is to run and the seed of all that it draws, which it
// logs. It skips the test in an ordinary test run. The name is that of the soak command.
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

// Only skips the test in an ordinary test run. The name is that of the soak command.
func Only(t testing.TB, name string) {
	t.Helper()
	if !On() {
		t.Skipf("takes minutes: go run ./soak %s", name)
	}
}

// Seeds yields the seeds of a model that is checked run by run, until the test has failed, and then
// logs the last one. In an ordinary test run these are 1 to n. Under the soak command they are random
// until its time is over, or the one seed that was given.
func Seeds(t testing.TB, n int) iter.Seq[uint64] {
	t.Helper()
	return func(yield func(uint64) bool) {
		runs, end := 0, time.Now().Add(*length)
		var s uint64
		defer func() { // also if the test ends its goroutine
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
