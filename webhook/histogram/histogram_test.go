package histogram

import (
	"math"
	"testing"
	"time"
)

func TestBuckets(t *testing.T) {
	last := 0
	for d := time.Duration(1 << 10); d < 1<<41; d += 1 + d/64 {
		b := bucketOf(d)
		if b < last || b > last+1 || b >= bucketCount {
			t.Fatalf("%v is in bucket %d, and the next shorter time in bucket %d of %d; want the same or the next bucket", d, b, last, bucketCount)
		}
		if end := endOf(b); end < d || end > d+d/8 || bucketOf(end+time.Nanosecond) == b && b < bucketCount-1 {
			t.Fatalf("%v is in bucket %d, which ends at %v; want the end at most an eighth above", d, b, end)
		}
		last = b
	}
	if last != bucketCount-1 {
		t.Errorf("the last bucket in use is %d of %d, want all in use", last, bucketCount)
	}
	for d, want := range map[time.Duration]int{-1: 0, 0: 0, math.MaxInt64: bucketCount - 1} {
		if b := bucketOf(d); b != want {
			t.Errorf("bucketOf(%v) = %d, want %d", d, b, want)
		}
	}
}

func TestQuantiles(t *testing.T) {
	var h Durations[uint16]
	if got := h.Quantile(0.99); got != 0 {
		t.Errorf("Quantile(0.99) of an empty histogram = %v, want 0", got)
	}
	for i := range 1000 {
		h.Add(time.Duration(i+1) * time.Millisecond)
	}
	for q, want := range map[float64]time.Duration{0.5: 500 * time.Millisecond, 0.9: 900 * time.Millisecond, 0.99: 990 * time.Millisecond} {
		if got := h.Quantile(q); got < want || got > want+want/8 {
			t.Errorf("Quantile(%v) = %v, want %v or an eighth more", q, got, want)
		}
	}
	// Recent samples outweigh old ones.
	const most = 8192 // an eighth of what a bucket of 16 bits holds
	for range 20 * most {
		h.Add(time.Microsecond)
	}
	if got := h.Quantile(0.9999); got > 1152*time.Nanosecond || h.n > most {
		t.Errorf("Quantile(0.9999) = %v with %d samples, want at most 1.152µs with at most %d", got, h.n, most)
	}
}
