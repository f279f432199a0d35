//go:build unix

package pgqueue

import (
	"testing"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/internal/bench"
	"github.com/hookferry/analytics/webhook/queuetest"
)

func BenchmarkQueue(b *testing.B) { queuetest.Bench(b, open) }

// BenchmarkDeliveries has PostgreSQL and the receiver as processes of the same
// machine.
func BenchmarkDeliveries(b *testing.B) {
	bench.Deliveries(b, func(b *testing.B) webhook.Queue { return open(b, b.TempDir()) })
}
