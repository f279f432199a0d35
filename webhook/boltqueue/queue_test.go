package boltqueue_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/boltqueue"
	"github.com/hookferry/analytics/webhook/queuetest"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(crashDir); dir != "" {
		crashChild(dir)
		return
	}
	if dir := os.Getenv(syncDir); dir != "" {
		syncChild(dir)
		return
	}
	if dir := os.Getenv(limitDir); dir != "" {
		limitChild(dir)
		return
	}
	if settings := os.Getenv(soakSettings); settings != "" {
		if err := soakChild(settings); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func openWith(c *boltqueue.Config) queuetest.Open {
	return func(t testing.TB, dir string) webhook.Queue {
		q, err := boltqueue.Open(filepath.Join(dir, "queue.db"), c)
		if err != nil {
			t.Fatal(err)
		}
		return q
	}
}

func check(t testing.TB, q webhook.Queue) {
	if err := q.(*boltqueue.Queue).Check(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestQueue(t *testing.T) {
	queuetest.Run(t, openWith(nil), queuetest.Traits{
		Durable:  true,
		Bubble:   true,
		OpenFull: openWith(&boltqueue.Config{MaxBytes: 8 << 20}),
		Check:    check,
	})
}

// With hardly any memory everything goes through the file.
func TestQueueWithoutCache(t *testing.T) {
	c := &boltqueue.Config{CacheBytes: 1}
	queuetest.Run(t, openWith(c), queuetest.Traits{Durable: true, Bubble: true, Check: check})
}

func BenchmarkQueue(b *testing.B) { queuetest.Bench(b, openWith(nil)) }
