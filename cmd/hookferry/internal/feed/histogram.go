package feed

import (
	"math/bits"
	"time"
)

// A histogram counts durations of up to 35 minutes. It does not keep each duration, but how many of
// them fall into each bucket, a range of durations. There is a bucket for each microsecond below 16.
// From there on, the range from each power of two to the next is divided into eight buckets of the
// same width.
type histogram struct {
	n       int // the sum of buckets
	buckets [histogramBuckets]uint32
}

const (
	histogramBits    = 31 // of the longest duration, in microseconds
	histogramBuckets = (histogramBits - 2) * 8
)

// add counts a duration. A longer one than 35 minutes counts as that long.
func (h *histogram) add(d time.Duration) {
	us := min(uint64(max(d, 0)/time.Microsecond), 1<<histogramBits-1)
	shift := max(bits.Len64(us)-4, 0)
	h.n++
	h.buckets[uint64(shift*8)+us>>shift]++
}

// quantile returns the end of the bucket, in microseconds, with the percentile p of the durations.
func (h *histogram) quantile(p int) uint32 {
	rank, i := (h.n*p+99)/100, 0
	for rank -= int(h.buckets[0]); rank > 0; rank -= int(h.buckets[i]) {
		i++
	}
	if i < 8 {
		return uint32(i)
	}
	shift := i/8 - 1
	return uint32(8+i%8+1)<<shift - 1
}
