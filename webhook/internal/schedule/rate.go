package schedule

import (
	"math"
	"time"
)

// A bucket is a token bucket, full at first. It gets a token at a fixed interval, up to burst
// tokens, and each attempt takes one. The zero bucket has no limit. Its state is the time at which
// it will be full, which needs no timer and no rounding (see the virtual scheduling form of the
// generic cell rate algorithm in ITU-T I.371). The rate may change: tokens taken before stay taken.
type bucket struct {
	interval time.Duration
	burst    int
	full     time.Time
}

func (b *bucket) tokens(now time.Time) int {
	if b.interval == 0 {
		return math.MaxInt
	}
	if most := now.Add(b.interval * time.Duration(b.burst)); b.full.After(most) {
		b.full = most // the rate has changed, or the clock was set back
	}
	lack := b.full.Sub(now)
	if lack <= 0 {
		return b.burst
	}
	return b.burst - int((lack+b.interval-1)/b.interval)
}

// when returns the time from which the bucket has n tokens. n is at most burst.
func (b *bucket) when(n int) time.Time {
	return b.full.Add(-time.Duration(b.burst-n) * b.interval)
}

func (b *bucket) take(now time.Time) {
	if b.full.Before(now) {
		b.full = now
	}
	b.full = b.full.Add(b.interval)
}
