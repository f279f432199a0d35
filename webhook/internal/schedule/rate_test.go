package schedule

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

func TestBucket(t *testing.T) {
	start := time.Now()
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		interval, burst := time.Duration(1+rnd.Int64N(int64(time.Second))), 1+rnd.IntN(20)
		b := bucket{interval: interval, burst: burst}
		if n := b.tokens(start); n != burst {
			t.Fatalf("a new bucket of %d has %d tokens", burst, n)
		}
		var taken []time.Time
		now := start
		for range 500 {
			switch n := b.tokens(now); {
			case n < 0 || n > burst:
				t.Fatalf("%d tokens in a bucket of %d", n, burst)
			case n > 0:
				b.take(now)
				taken = append(taken, now)
				if m := b.tokens(now); m != n-1 {
					t.Fatalf("%d tokens after one of %d was taken", m, n)
				}
			default:
				for k := 1; k <= burst; k++ {
					at := b.when(k)
					if early, due := b.tokens(at.Add(-1)), b.tokens(at); early != k-1 || due != k {
						t.Fatalf("when(%d) is a time with %d tokens, after one with %d", k, due, early)
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
					t.Fatalf("%d taken in %v, want at most %d with an interval of %v and a burst of %d", n, taken[j].Sub(taken[i]), most, interval, burst)
				}
			}
		}
	}
	var none bucket
	if n := none.tokens(start); n != math.MaxInt {
		t.Errorf("the zero bucket has %d tokens", n)
	}
}

func TestBucketChanges(t *testing.T) {
	now := time.Now()
	b := bucket{interval: time.Hour, burst: 1}
	b.take(now)
	b.set(time.Second, 3, now)
	if n := b.tokens(now); n != 0 {
		t.Errorf("%d tokens after a change, none before it", n)
	}
	if at := b.when(1); at.Sub(now) != time.Second {
		t.Errorf("the first comes after %v", at.Sub(now))
	}
	b.set(0, 0, now)
	if n := b.tokens(now); n != math.MaxInt {
		t.Errorf("%d tokens without a rate", n)
	}
}
