//go:build !race

package webhookprom

import (
	"net/http"
	"testing"
	"time"

	"github.com/hookferry/analytics/webhook"
)

// delivery makes the calls of an observer for one delivery.
func delivery(m *Metrics) {
	m.Accepted(webhook.Accepted{Stored: 1})
	m.Attempted(webhook.Attempted{
		Delivery: webhook.Delivery{Destination: "acme", ID: "m1", Type: "track"},
		Attempt:  webhook.Attempt{Took: webhook.Millis(time.Millisecond), Status: http.StatusOK}, Outcome: webhook.OutcomeDelivered,
	})
	m.Ended(webhook.Record{Delivery: webhook.Delivery{Destination: "acme", Accepted: start}, At: start.Add(time.Second)})
}

var start = time.Unix(1_700_000_000, 0)

func TestCountingAllocatesNothing(t *testing.T) {
	m := New()
	if n := testing.AllocsPerRun(100, func() { delivery(m) }); n != 0 {
		t.Errorf("got %v allocations for a delivery, want 0", n)
	}
}

func BenchmarkDelivery(b *testing.B) {
	m := New()
	b.ReportAllocs()
	for b.Loop() {
		delivery(m)
	}
}

func BenchmarkDeliveryParallel(b *testing.B) {
	m := New()
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			delivery(m)
		}
	})
}
