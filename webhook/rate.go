package webhook

import (
	"math"
	"time"
)

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
