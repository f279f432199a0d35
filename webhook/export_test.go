package webhook

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

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

// Never is a Timeout that no attempt of a test reaches.
const Never = time.Hour

// QuickRetry is a seed after which the first failed attempt is followed by another at once.
const QuickRetry = 668

// SeedJitter fixes the jitter from here on.
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
