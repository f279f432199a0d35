package filequeue_test

import (
	"flag"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hookferry/analytics/internal/simdisk"
	"github.com/hookferry/analytics/webhook/filequeue"
	"github.com/hookferry/analytics/webhook/internal/bench"
	"github.com/hookferry/analytics/webhook/queuetest"
	"github.com/hookferry/analytics/webhook/store"
)

func TestMain(m *testing.M) {
	bench.Main()
	flag.Parse()
	goleak.VerifyTestMain(m)
}

// onFolder returns a function that opens stores in folders.
func onFolder(c filequeue.Config) queuetest.Open {
	return func(t testing.TB, dir string) store.Store {
		s, err := filequeue.OpenUnsynced(dir, c)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
}

// simulated returns a function that opens stores on simulated disks of a size. On a small disk the
// segments are short, so the store seals, merges and removes them all the time.
func simulated(c filequeue.Config, capacity int64) queuetest.Open {
	disks := make(map[string]*simdisk.Disk)
	return func(t testing.TB, dir string) store.Store {
		d := disks[dir]
		if d == nil {
			d = simdisk.New(1)
			d.SetCapacity(capacity)
			disks[dir] = d
			t.Cleanup(func() { delete(disks, dir) })
		}
		s, err := filequeue.OpenOn(d, c)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
}

// TestStoreInFolder runs the suite in a real folder.
func TestStoreInFolder(t *testing.T) {
	queuetest.Run(t, onFolder(filequeue.Config{}), queuetest.Traits{
		Durable: true, Bubble: true, OpenHistory: onFolder(filequeue.Config{HistoryAge: store.Unlimited}),
	})
}

func TestStore(t *testing.T) {
	queuetest.Run(t, simulated(filequeue.Config{}, 64<<20), queuetest.Traits{
		Durable:     true,
		Bubble:      true,
		OpenFull:    simulated(filequeue.Config{MaxBytes: 8 << 20}, 64<<20),
		OpenHistory: simulated(filequeue.Config{HistoryAge: 24 * time.Hour}, 8<<20),
	})
}

// TestStoreOnSmallDisk has segments of 64 KB, so most cases of the suite use several segments.
// Its history is in tables of a few deliveries.
func TestStoreOnSmallDisk(t *testing.T) {
	history := simulated(filequeue.Config{HistoryAge: 24 * time.Hour}, 8<<20)
	queuetest.Run(t, simulated(filequeue.Config{}, 32<<20), queuetest.Traits{
		Durable:  true,
		Bubble:   true,
		OpenFull: simulated(filequeue.Config{MaxBytes: 8 << 20}, 32<<20),
		OpenHistory: func(t testing.TB, dir string) store.Store {
			s := history(t, dir)
			s.(*filequeue.Store).KeepInTables(2000)
			return s
		},
	})
}

func BenchmarkStore(b *testing.B) {
	bench.Store(b, func(b *testing.B) store.Store {
		s, err := filequeue.Open(b.TempDir(), filequeue.Config{})
		if err != nil {
			b.Fatal(err)
		}
		return s
	})
}
