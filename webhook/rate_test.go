package webhook

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

func TestCheckRate(t *testing.T) {
	for _, tt := range []struct {
		name     string
		rate     float64
		burst    int
		interval time.Duration
		want     int
		field    string
	}{
		{"none", 0, 0, 0, 0, ""},
		{"ten", 10, 0, 100 * time.Millisecond, 1, ""},
		{"a thousand", 1000, 0, time.Millisecond, 100, ""},
		{"a third", 3, 7, 333333334, 7, ""},
		{"one a day", 1 / 86400., 0, 24 * time.Hour, 1, ""},
		{"one in two days", 1 / 172800., 0, 0, 0, "MaxRate"},
		{"negative", -1, 0, 0, 0, "MaxRate"},
		{"no number", math.NaN(), 0, 0, 0, "MaxRate"},
		{"infinite", math.Inf(1), 0, 0, 0, "MaxRate"},
		{"too many", 1e6 + 1, 0, 0, 0, "MaxRate"},
		{"negative burst", 1, -1, 0, 0, "MaxBurst"},
		{"burst alone", 0, 1, 0, 0, "MaxBurst"},
		{"absurd burst", 1, 86401, 0, 0, "MaxBurst"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			interval, burst, err := checkRate(tt.rate, tt.burst)
			if interval != tt.interval || burst != tt.want || (err != nil) != (tt.field != "") {
				t.Errorf("checkRate(%v, %d) = %v, %d, %v; want %v, %d", tt.rate, tt.burst, interval, burst, err, tt.interval, tt.want)
			}
			if err != nil && err.(*ConfigError).Field != tt.field {
				t.Errorf("checkRate(%v, %d) = %v, want it of %s", tt.rate, tt.burst, err, tt.field)
			}
		})
	}
}
