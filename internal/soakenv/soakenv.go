// Package soakenv lets a test run in two lengths: a short, repeatable one in every test run, and a
// long, random one under the soak command, which sets environment variables. It has no flags, because
// package queuetest uses it in the test binaries of other projects.
//
//	go run ./soak list              # list all soaks
//	go run ./soak kill -for 10m     # run the soak "kill" for ten minutes
//	go run ./soak kill -seed 42     # repeat it with a printed seed
//	go run ./soak simulation -seeds 1000
package soakenv

import (
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/hookferry/analytics/internal/testkit"
)

var (
	length = value("SOAK_FOR", time.ParseDuration) // how long a soak runs; 0 in an ordinary test run
	seed   = value("SOAK_SEED", number)            // the seed of a soak; 0 draws one
	count  = value("SOAK_SEEDS", strconv.Atoi)     // how many seeds a soak runs, whatever fails; 0 leaves it to the others
)

// value returns the value of an environment variable, or zero without one. It panics if parse fails.
func value[T any](name string, parse func(string) (T, error)) (v T) {
	text := os.Getenv(name)
	if text == "" {
		return v
	}
	v, err := parse(text)
	if err != nil {
		panic(fmt.Sprintf("%s: %v", name, err))
	}
	return v
}

func number(s string) (uint64, error) { return strconv.ParseUint(s, 10, 64) }

// On reports whether the soak command runs this test.
func On() bool { return length > 0 || seed > 0 || count > 0 }

// Long skips the test in an ordinary test run. In a run by the soak command, it returns how long
// the soak must run, and the seed for all its random choices. It logs the seed. The string name
// is the argument of the soak command that selects this soak.
func Long(t testing.TB, name string) (time.Duration, uint64) {
	t.Helper()
	Only(t, name)
	s := seed
	if s == 0 {
		s = rand.Uint64()
	}
	t.Logf("go run ./soak %s -seed %d", name, s)
	return max(length, time.Second), s
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
// failed, and then logs the last seed. In an ordinary test run the seeds are 1 to n, and with the
// race detector, which makes them take five to ten times as long, 1 to n/10. Under the soak command,
// the test gets the seed of the soak command or, without such a seed, random seeds until the time is
// over. If the command has a number of seeds, the test gets so many in a row, also after a failure.
// The first of them is the seed of the command, or random.
func Seeds(t testing.TB, n int) iter.Seq[uint64] {
	t.Helper()
	if testkit.Race {
		n = (n + 9) / 10
	}
	return func(yield func(uint64) bool) {
		runs, begin, told := 0, time.Now(), time.Now()
		next := func() uint64 { return uint64(runs + 1) }
		more := func() bool { return runs < n && !t.Failed() }
		switch {
		case count > 0:
			first := seed
			if first == 0 {
				first = uint64(rand.Uint32()) // so that all of them are short
			}
			next = func() uint64 { return first + uint64(runs) }
			more = func() bool { return runs < count }
		case seed > 0:
			next, n = func() uint64 { return seed }, 1
		case length > 0:
			next = rand.Uint64
			more = func() bool { return time.Since(begin) < length && !t.Failed() }
		}
		var s uint64
		defer func() { // runs even if the test ends its goroutine
			if t.Failed() && count == 0 {
				t.Logf("seed %d (SOAK_SEED)", s)
			} else if length > 0 || count > 0 {
				tell(t, runs, begin)
			}
		}()
		for more() {
			s = next()
			runs++
			if !yield(s) {
				return
			}
			if On() && time.Since(told) > time.Minute {
				told = time.Now()
				tell(t, runs, begin)
			}
		}
	}
}

func tell(t testing.TB, runs int, begin time.Time) {
	took := time.Since(begin)
	t.Logf("%d seeds in %v, %.1f a second", runs, took.Round(time.Second), float64(runs)/took.Seconds())
}
