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

// Batches measures deliveries to a destination that takes 100 events in a request, in turn with one
// that takes one. It reports the events a second of both, and their ratio as x_single. Each has a store
// of its own, which open returns. The receiver is a separate process. cpu may be nil. Otherwise it
// returns the processor time of this process, and Batches also reports that of an event, in
// microseconds.
func Batches(b *testing.B, open func(b *testing.B) webhook.Store, cpu func() time.Duration) {
	rawURL := Receiver(b)
	used := cpu
	if cpu == nil {
		used = func() time.Duration { return 0 }
	}
	var loads [2]*Load
	for i, batch := range []webhook.Batch{{}, {MaxEvents: 100, MaxWait: 10 * time.Millisecond}} {
		ended := NewEndings()
		c := webhook.Config{Store: open(b), Observers: []webhook.Observer{ended}}
		loads[i] = StartLoadTo(b, c, ended, rawURL, 1, 64, webhook.Destination{Batch: batch})
		loads[i].Forward(*Round)
	}
	var took, cost [2]time.Duration
	n := 0
	for b.Loop() {
		for i, l := range loads {
			c := used()
			took[i] += l.Forward(*Round)
			cost[i] += used() - c
		}
		n += *Round
	}
	for i, name := range []string{"single", "batched"} {
		b.ReportMetric(float64(n)/took[i].Seconds(), name+"/s")
		if cpu != nil {
			b.ReportMetric(float64(cost[i].Microseconds())/float64(n), name+"_us")
		}
	}
	b.ReportMetric(took[0].Seconds()/took[1].Seconds(), "x_single")
	b.ReportMetric(0, "ns/op")
}
