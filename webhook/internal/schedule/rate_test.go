package schedule

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// In any time a bucket gives at most burst tokens, and one for each interval. when(k) is the first
// time at which there are k tokens.
func TestBucketBoundsRateAndBurst(t *testing.T) {
	start := time.Now()
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		interval, burst := time.Duration(1+rnd.Int64N(int64(time.Second))), 1+rnd.IntN(20)
		b := bucket{interval: interval, burst: burst}
		if n := b.tokens(start); n != burst {
			t.Fatalf("a new bucket has %d tokens, want %d", n, burst)
		}
		var taken []time.Time
		now := start
		for range 500 {
			switch n := b.tokens(now); {
			case n < 0 || n > burst:
				t.Fatalf("got %d tokens in a bucket, want 0 to %d", n, burst)
			case n > 0:
				b.take(now)
				taken = append(taken, now)
				if m := b.tokens(now); m != n-1 {
					t.Fatalf("after one of %d tokens was taken, got %d, want %d", n, m, n-1)
				}
			default:
				for k := 1; k <= burst; k++ {
					at := b.when(k)
					if early, due := b.tokens(at.Add(-1)), b.tokens(at); early != k-1 || due != k {
						t.Fatalf("at when(%d) got %d tokens, and %d just before; want %d, and %d before", k, due, early, k, k-1)
					}
				}
				now = b.when(1)
			}
			if rnd.IntN(10) == 0 {
				now = now.Add(time.Duration(rnd.Int64N(int64(3 * interval))))
			}
		}
		for i := range taken {
			for j := i; j < len(taken); j++ {
				if n, most := j-i+1, burst+int(taken[j].Sub(taken[i])/interval); n > most {
					t.Fatalf("%d tokens taken in %v, want at most %d with an interval of %v and a burst of %d", n, taken[j].Sub(taken[i]), most, interval, burst)
				}
			}
		}
	}
	var none bucket
	if n := none.tokens(start); n != math.MaxInt {
		t.Errorf("the zero bucket has %d tokens, want no limit", n)
	}
}

// A change of the rate gives an empty bucket no tokens. Without a rate there is no limit.
func TestChangedRateAddsNoTokens(t *testing.T) {
	now := time.Now()
	b := bucket{interval: time.Hour, burst: 1}
	b.take(now)
	b.interval, b.burst = time.Second, 3
	if n := b.tokens(now); n != 0 {
		t.Errorf("an empty bucket has %d tokens after the change, want 0", n)
	}
	if at := b.when(1); at.Sub(now) != time.Second {
		t.Errorf("the first token comes after %v, want 1s", at.Sub(now))
	}
	b.interval, b.burst = 0, 0
	if n := b.tokens(now); n != math.MaxInt {
		t.Errorf("without a rate got %d tokens, want no limit", n)
	}
}
