package webhook

import (
	"math"
	"time"
)

// A histogram counts durations from a microsecond to 35 minutes in buckets, each of which begins at
// 1.09 times (the eighth root of two) the beginning of the one before. At maxSamples durations it
// halves all counts, so that later durations weigh more.
type histogram struct {
	n       int
	buckets [histogramBuckets]uint16
}

const (
	maxSamples       = 8192   // fits in the uint16 of a bucket
	histogramBuckets = 8 * 31 // the last one ends at 2^31 microseconds
)

func (h *histogram) add(d time.Duration) {
	if h.n == maxSamples {
		h.n = 0
		for i := range h.buckets {
			h.buckets[i] /= 2
			h.n += int(h.buckets[i])
		}
	}
	h.n++
	h.buckets[bucketOf(d)]++
}

func bucketOf(d time.Duration) int {
	us := max(float64(d)/float64(time.Microsecond), 1)
	return min(int(8*math.Log2(us)), histogramBuckets-1)
}

func endOf(bucket int) time.Duration {
	return time.Duration(math.Ceil(math.Exp2(float64(bucket+1)/8) * float64(time.Microsecond)))
}

// quantile returns a duration that the share q of all durations does not exceed, at most an eighth
// too long. It is 0 if the histogram is empty.
func (h *histogram) quantile(q float64) time.Duration {
	rank := max(int(q*float64(h.n)+0.999999), 1)
	for i, n := range h.buckets {
		if rank -= int(n); rank <= 0 {
			return endOf(i)
		}
	}
	return 0
}
