package webhook

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

// jitters is the source of all jitter in tests. It is seeded, so that the waits repeat.
var jitters = struct {
	sync.Mutex
	*rand.PCG
}{PCG: rand.NewPCG(1, 0)}

func init() {
	random := rand.New(jitters.PCG)
	jitter = func(n time.Duration) time.Duration {
		jitters.Lock()
		defer jitters.Unlock()
		return time.Duration(random.Int64N(int64(n)))
	}
}

// Never is a Timeout that is too long for any attempt of a test to reach.
const Never = time.Hour

// QuickRetry is a seed of the jitter that makes the first retry follow almost at once.
const QuickRetry = 668

// SeedJitter restarts the jitter with the given seed.
func SeedJitter(seed uint64) {
	jitters.Lock()
	defer jitters.Unlock()
	jitters.Seed(seed, 0)
}

// must ends the test if err is not nil.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
