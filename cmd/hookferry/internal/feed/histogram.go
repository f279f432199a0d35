package feed

import (
	"math/bits"
	"time"
)

// A histogram counts durations from a microsecond to 35 minutes. A bucket covers a range of
// durations. The width of the range is at most an eighth of the durations in it.
type histogram struct {
	n       int
	buckets [histogramBuckets]uint32
}

const (
	histogramBits    = 31 // of the longest duration, in microseconds
	histogramBuckets = (histogramBits - 2) * 8
)

func (h *histogram) add(d time.Duration) {
	h.n++
	h.buckets[bucketOf(d)]++
}

func (h *histogram) merge(other *histogram) {
	h.n += other.n
	for i, n := range other.buckets {
		h.buckets[i] += n
	}
}

// bucketOf returns the bucket of d. The range from each power of two to the next has eight buckets.
func bucketOf(d time.Duration) int {
	us := min(uint64(max(d, 0)/time.Microsecond), 1<<histogramBits-1)
	if us < 8 {
		return int(us)
	}
	shift := bits.Len64(us) - 4
	return (shift+1)*8 + int(us>>shift&7)
}

// endOf returns the largest duration in a bucket, in milliseconds.
func endOf(bucket int) float32 {
	us := bucket
	if bucket >= 8 {
		shift := bucket/8 - 1
		us = (8+bucket%8+1)<<shift - 1
	}
	return float32(us) / 1000
}

// quantiles returns the median and the 99th percentile of the durations, in milliseconds. Both
// are the ends of buckets, so they are up to an eighth too long.
func (h *histogram) quantiles() (p50, p99 float32) {
	half, most := (h.n+1)/2, (h.n*99+99)/100
	seen, found := 0, false
	for i, n := range h.buckets {
		seen += int(n)
		if !found && seen >= half {
			p50, found = endOf(i), true
		}
		if seen >= most {
			return p50, endOf(i)
		}
	}
	return p50, p99
}
