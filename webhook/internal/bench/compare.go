package bench

import (
	"testing"
	"time"

	"github.com/hookferry/analytics/webhook"
)

// Ordered measures deliveries of events with 10,000 Keys, in turn with events without a Key. It
// reports both rates, and their ratio as x_plain. Each has a store of its own, which open returns.
// The receiver is a separate process.
func Ordered(b *testing.B, open func(b *testing.B) webhook.Store) {
	plain, keyed := NewLoad(b, open(b), 1, 64), NewLoad(b, open(b), 1, 64)
	keyed.Keys = 10_000
	plain.Forward(Batch)
	keyed.Forward(Batch)
	var plainTime, keyedTime time.Duration
	n := 0
	for b.Loop() {
		plainTime += plain.Forward(*Round)
		keyedTime += keyed.Forward(*Round)
		n += *Round
	}
	b.ReportMetric(float64(n)/plainTime.Seconds(), "plain/s")
	b.ReportMetric(float64(n)/keyedTime.Seconds(), "keyed/s")
	b.ReportMetric(plainTime.Seconds()/keyedTime.Seconds(), "x_plain")
	b.ReportMetric(0, "ns/op")
}
