package memqueue_test

import (
	"testing"

	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/webhook/internal/bench"
	"github.com/hookferry/analytics/webhook/memqueue"
	"github.com/hookferry/analytics/webhook/queuetest"
	"github.com/hookferry/analytics/webhook/store"
)

func open(testing.TB, string) store.Store { return testkit.Must(memqueue.Open(memqueue.Config{})) }

func TestQueue(t *testing.T) {
	queuetest.Run(t, open, queuetest.Traits{
		Bubble: true,
		OpenFull: func(testing.TB, string) store.Store {
			return testkit.Must(memqueue.Open(memqueue.Config{MaxBytes: 8 << 20}))
		},
	})
}

// The suite also works outside of a synctest bubble, for stores that cannot run in one.
func TestQueueInRealTime(t *testing.T) {
	queuetest.Run(t, open, queuetest.Traits{})
}

func BenchmarkQueue(b *testing.B) {
	bench.Store(b, func(*testing.B) store.Store {
		return testkit.Must(memqueue.Open(memqueue.Config{MaxBytes: 1 << 40}))
	})
}

func TestNegativeConfig(t *testing.T) {
	testkit.Negative(t, memqueue.Config{}, func(c memqueue.Config) error {
		_, err := memqueue.Open(c)
		return err
	}, "MaxBytes")
}
