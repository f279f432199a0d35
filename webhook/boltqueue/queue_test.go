package boltqueue_test

import (
	"errors"
	"flag"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hookferry/analytics/internal/soak"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/boltqueue"
	"github.com/hookferry/analytics/webhook/queuetest"
)

func TestMain(m *testing.M) {
	flag.Parse()
	bench := flag.Lookup("test.bench").Value.String()
	boltqueue.SetSyncing(soak.On() || bench != "")
	goleak.VerifyTestMain(m)
}

func openWith(c *boltqueue.Config) queuetest.Open {
	return func(t testing.TB, dir string) webhook.Store {
		q, err := boltqueue.Open(filepath.Join(dir, "queue.db"), c)
		if err != nil {
			t.Fatal(err)
		}
		return webhook.FromQueue(q)
	}
}

func checkStore(t testing.TB, s webhook.Store) {
	check(t, s.(interface {
		Unwrap() webhook.SchedulingQueue
	}).Unwrap().(*boltqueue.Queue))
}

func check(t testing.TB, q *boltqueue.Queue) {
	if err := q.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestQueue(t *testing.T) {
	queuetest.Run(t, openWith(nil), queuetest.Traits{
		Durable:  true,
		Bubble:   true,
		OpenFull: openWith(&boltqueue.Config{MaxBytes: 8 << 20}),
		Check:    checkStore,
		Mixed:    true,
	})
}

// With hardly any memory everything goes through the file.
func TestQueueWithoutCache(t *testing.T) {
	c := &boltqueue.Config{CacheBytes: 1}
	queuetest.Run(t, openWith(c), queuetest.Traits{Durable: true, Bubble: true, Check: checkStore, Mixed: true})
}

// A store that is full is full when it is opened again.
func TestFullAfterOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "queue.db")
	config := &boltqueue.Config{MaxBytes: 4 << 20}
	n := 0
	put := func(q *boltqueue.Queue) error {
		n++
		_, err := q.Put(t.Context(), webhook.Delivery{Destination: "a", ID: fmt.Sprint(n), Body: make([]byte, 100_000), Due: time.Now()})
		return err
	}
	for opened := range 3 {
		q, err := boltqueue.Open(path, config)
		if err != nil {
			t.Fatal(err)
		}
		stored := 0
		for err = put(q); err == nil && stored < 100; err = put(q) {
			stored++
		}
		if !errors.Is(err, webhook.ErrQueueFull) || opened > 0 && stored > 0 {
			t.Errorf("opened %d times before, it takes %d puts, and then %v, want ErrQueueFull", opened, stored, err)
		}
		if err := q.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func BenchmarkQueue(b *testing.B) { queuetest.Bench(b, openWith(nil)) }
