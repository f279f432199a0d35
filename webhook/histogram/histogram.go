// Package histogram counts durations in little memory.
package histogram

import (
	"math/bits"
	"time"
)

// Durations counts durations in buckets, eight for each power of two of nanoseconds: shorter ones
// than 1,024 ns in the first, longer ones than 36 minutes in the last. When their number has reached
// an eighth of the largest N, it halves all counts, so that later durations weigh more. The zero
// value is empty. It is not safe for concurrent use.
type Durations[N uint16 | uint32] struct {
	n       int
	buckets [bucketCount]N
}

const (
	firstShift  = 7      // a bucket below 2,048 ns has 1<<7 ns
	bucketCount = 8 * 31 // the last one ends at 1<<41 ns
)

// Add counts d.
func (h *Durations[N]) Add(d time.Duration) {
	if h.n > int(^N(0)>>3) {
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
	ns := max(uint64(max(d, 0)), 8<<firstShift)
	shift := bits.Len64(ns) - 4
	return min((shift-firstShift)*8+int(ns>>shift)-8, bucketCount-1)
}

func endOf(bucket int) time.Duration {
	return time.Duration(bucket%8+9)<<(bucket/8+firstShift) - 1
}

// Quantile returns a duration that the share q of all durations does not exceed, at most an eighth
// too long. It is 0 if the histogram is empty.
func (h *Durations[N]) Quantile(q float64) time.Duration {
	rank := max(int(q*float64(h.n)+0.999999), 1)
	for i, n := range h.buckets {
		if rank -= int(n); rank <= 0 {
			return endOf(i)
		}
	}
	return 0
}
