package webhook

import (
	"math"
	"testing"
	"time"
)

func TestHistogramBuckets(t *testing.T) {
	last := -1
	for us := int64(0); us < 1<<histogramBits; us += 1 + us/64 {
		d := time.Duration(us) * time.Microsecond
		b := bucketOf(d)
		if b < last || b > last+1 || b >= histogramBuckets {
			t.Fatalf("%v is in bucket %d, what is shorter in %d of %d", d, b, last, histogramBuckets)
		}
		if end := endOf(b); end < d || end > d+d/8 || bucketOf(end) != b || bucketOf(end+time.Microsecond) == b && b < histogramBuckets-1 {
			t.Fatalf("%v is in bucket %d, which ends at %v", d, b, end)
		}
		last = b
	}
	if last != histogramBuckets-1 {
		t.Errorf("the last bucket in use is %d of %d", last, histogramBuckets)
	}
	for d, want := range map[time.Duration]int{-1: 0, 0: 0, math.MaxInt64: histogramBuckets - 1} {
		if b := bucketOf(d); b != want {
			t.Errorf("%v is in bucket %d, want %d", d, b, want)
		}
	}
}

func TestHistogramQuantiles(t *testing.T) {
	var h histogram
	if got := h.quantile(0.99); got != 0 {
		t.Errorf("the quantile of nothing is %v", got)
	}
	for i := range 1000 {
		h.add(time.Duration(i+1) * time.Millisecond)
	}
	for q, want := range map[float64]time.Duration{0.5: 500 * time.Millisecond, 0.9: 900 * time.Millisecond, 0.99: 990 * time.Millisecond} {
		if got := h.quantile(q); got < want || got > want+want/8 {
			t.Errorf("quantile(%v) = %v, want %v or an eighth more", q, got, want)
		}
	}
	// What was long ago is outweighed.
	for range 20 * maxSamples {
		h.add(time.Microsecond)
	}
	if got := h.quantile(0.9999); got != time.Microsecond || h.n > maxSamples {
		t.Errorf("quantile(0.9999) of the latest of %d samples = %v, want 1µs", h.n, got)
	}
}

// However many destinations come, the accounts of those in use are kept.
func TestAccountsAreBounded(t *testing.T) {
	var as accounts
	busy, idle := as.of("busy"), as.of("idle")
	busy.used.Store(math.MaxInt64)
	idle.used.Store(0)
	for i := range 2 * maxAccounts {
		as.of(string(rune('a'+i%26)) + time.Duration(i).String())
		if len(as.byID) > maxAccounts {
			t.Fatalf("%d accounts are kept, the bound is %d", len(as.byID), maxAccounts)
		}
	}
	if as.of("busy") != busy {
		t.Error("the account in use is forgotten")
	}
	if as.of("idle") == idle {
		t.Error("the account that was used least is kept")
	}
}
