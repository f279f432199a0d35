package webhook

import (
	"math/bits"
	"time"
)

// A histogram counts durations from a microsecond to 35 minutes in 232 buckets. The width of a
// bucket is at most an eighth of the durations in it. At maxSamples durations it halves all counts,
// so that later durations weigh more.
type histogram struct {
	n       int
	buckets [histogramBuckets]uint16
}

const (
	maxSamples       = 8192 // fits in the uint16 of a bucket
	histogramBits    = 31   // bits of the longest duration, in microseconds
	histogramBuckets = (histogramBits - 2) * 8
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

// bucketOf returns the bucket of d. The range from each power of two to
// the next has eight buckets of the same width.
func bucketOf(d time.Duration) int {
	us := min(uint64(max(d, 0)/time.Microsecond), 1<<histogramBits-1)
	if us < 8 {
		return int(us)
	}
	shift := bits.Len64(us) - 4
	return (shift+1)*8 + int(us>>shift&7)
}

// endOf returns the largest duration in a bucket, to the microsecond.
func endOf(bucket int) time.Duration {
	us := bucket
	if bucket >= 8 {
		shift := bucket/8 - 1
		us = (8+bucket%8+1)<<shift - 1
	}
	return time.Duration(us) * time.Microsecond
}

// quantile returns a duration that the share q of all durations does not exceed. It is longer than
// the exact quantile by at most an eighth, and 0 if the histogram is empty.
func (h *histogram) quantile(q float64) time.Duration {
	rank := max(int(q*float64(h.n)+0.999999), 1)
	for i, n := range h.buckets {
		if rank -= int(n); rank <= 0 {
			return endOf(i)
		}
	}
	return 0
}
