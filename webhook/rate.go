package webhook

import (
	"math"
	"time"
)

// A bucket holds tokens, one for each attempt, that come at a fixed interval.
// It holds a number of them at most, and is full at first: in any time t there
// are at most burst + t/interval attempts. The zero bucket has no limit.
//
// It is kept as the time at which it will be full, which needs no timer and no
// rounding (the virtual scheduling form of ITU-T I.371's generic cell rate
// algorithm).
type bucket struct {
	interval time.Duration
	burst    int
	full     time.Time
}

// set changes the rate. What was spent stays spent.
func (b *bucket) set(interval time.Duration, burst int, now time.Time) {
	if interval == b.interval && burst == b.burst {
		return
	}
	if most := now.Add(interval * time.Duration(burst)); b.full.After(most) {
		b.full = most
	}
	b.interval, b.burst = interval, burst
}

// tokens returns how many there are.
func (b *bucket) tokens(now time.Time) int {
	if b.interval == 0 {
		return math.MaxInt
	}
	lack := b.full.Sub(now)
	if lack <= 0 {
		return b.burst
	}
	return b.burst - int((lack+b.interval-1)/b.interval)
}

// when returns the time from which there are n tokens, at most burst.
func (b *bucket) when(n int) time.Time {
	return b.full.Add(-time.Duration(b.burst-n) * b.interval)
}

// take spends a token.
func (b *bucket) take(now time.Time) {
	if b.full.Before(now) {
		b.full = now
	}
	b.full = b.full.Add(b.interval)
}

// idle reports whether the bucket is as good as a new one.
func (b *bucket) idle(now time.Time) bool { return !b.full.After(now) }

// checkRate returns the interval and the burst of a Destination's rate.
func checkRate(perSecond float64, burst int) (time.Duration, int, error) {
	const day = 24 * time.Hour
	switch {
	case perSecond == 0 && burst == 0:
		return 0, 0, nil
	case perSecond == 0:
		return 0, 0, refuse("MaxBurst", "is set without a rate")
	case !(perSecond >= 1/day.Seconds()) || perSecond > 1e6:
		return 0, 0, refuse("MaxRate", "%v is not between one a day and 1,000,000 a second", perSecond)
	case burst < 0:
		return 0, 0, refuse("MaxBurst", "%d is negative", burst)
	case burst == 0:
		burst = max(int(perSecond/10), 1)
	}
	if float64(burst) > max(perSecond*day.Seconds(), 1) {
		return 0, 0, refuse("MaxBurst", "%d is more than a day's worth of MaxRate", burst)
	}
	return time.Duration(math.Ceil(float64(time.Second) / perSecond)), burst, nil
}
