//go:build unix

package pgqueue

import (
	"log/slog"
	"testing"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/internal/bench"
	"github.com/hookferry/analytics/webhook/queuetest"
)

func openDefault(t testing.TB, dir string) webhook.Queue {
	return openWith(t, Config{Schema: schemaOf(dir), Logger: slog.New(slog.DiscardHandler)})
}

func BenchmarkQueue(b *testing.B) { queuetest.Bench(b, openDefault) }

// BenchmarkDeliveries has PostgreSQL and the receiver as processes of the same
// machine.
func BenchmarkDeliveries(b *testing.B) {
	bench.Deliveries(b, func(b *testing.B) webhook.Queue { return openDefault(b, b.TempDir()) })
}
