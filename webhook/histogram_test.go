package webhook

import (
	"fmt"
	"math"
	"testing"
	"time"
)

func TestHistogramBuckets(t *testing.T) {
	last := 0
	for d := time.Duration(1 << 10); d < 1<<41; d += 1 + d/64 {
		b := bucketOf(d)
		if b < last || b > last+1 || b >= histogramBuckets {
			t.Fatalf("%v is in bucket %d, and the next shorter time in bucket %d of %d; want the same or the next bucket", d, b, last, histogramBuckets)
		}
		if end := endOf(b); end < d || end > d+d/8 || bucketOf(end+time.Nanosecond) == b && b < histogramBuckets-1 {
			t.Fatalf("%v is in bucket %d, which ends at %v; want the end at most an eighth above", d, b, end)
		}
		last = b
	}
	if last != histogramBuckets-1 {
		t.Errorf("the last bucket in use is %d of %d, want all in use", last, histogramBuckets)
	}
	for d, want := range map[time.Duration]int{-1: 0, 0: 0, math.MaxInt64: histogramBuckets - 1} {
		if b := bucketOf(d); b != want {
			t.Errorf("bucketOf(%v) = %d, want %d", d, b, want)
		}
	}
}

func TestHistogramQuantiles(t *testing.T) {
	var h Histogram[uint16]
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

// The number of accounts is bounded. An account that is in use is not dropped.
func TestAccountsAreBounded(t *testing.T) {
	var as accounts
	busy, idle := as.of("busy"), as.of("idle")
	for i := range 3 * maxAccounts {
		as.of(fmt.Sprint(i))
		if n := len(as.recent) + len(as.older); n > 2*maxAccounts {
			t.Fatalf("got %d accounts, want at most %d", n, 2*maxAccounts)
		}
		if as.of("busy") != busy {
			t.Fatalf("the account in use was dropped after %d others, want it kept", i)
		}
	}
	if as.of("idle") == idle {
		t.Error("the account that was not used is kept, want it dropped")
	}
}
