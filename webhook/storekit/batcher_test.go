package storekit_test

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"weak"

	"github.com/hookferry/analytics/webhook/storekit"
)

// A book records the batches that were worked on, once the gate lets each through.
type book struct {
	gate chan struct{} // a value for each batch that may begin

	mu      sync.Mutex
	batches [][]int
}

func (b *book) work(rs []*int) {
	<-b.gate
	b.mu.Lock()
	defer b.mu.Unlock()
	var batch []int
	for _, r := range rs {
		batch = append(batch, *r)
	}
	b.batches = append(b.batches, batch)
}

func (b *book) check(t *testing.T, want ...[]int) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.EqualFunc(b.batches, want, slices.Equal) {
		t.Errorf("worked on %v, want %v", b.batches, want)
	}
}

func number(n int) *int { return &n }

func TestBatcherSharesWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &book{gate: make(chan struct{}, 10)}
		q := storekit.NewBatcher(1, 100, b.work)
		q.Add(number(1), 10)
		synctest.Wait() // it is being worked on
		q.Add(number(2), 60)
		q.Add(number(3), 40) // 100 with the one before
		q.Add(number(4), 1)
		q.Add(number(5), 1000) // alone, although over the limit
		q.Add(number(6), 1)
		b.check(t)
		b.gate <- struct{}{}
		b.gate <- struct{}{}
		synctest.Wait()
		b.check(t, []int{1}, []int{2, 3})
		close(b.gate)
		q.Close()
		b.check(t, []int{1}, []int{2, 3}, []int{4}, []int{5}, []int{6})
	})
}

func TestBatcherDrop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &book{gate: make(chan struct{})}
		q := storekit.NewBatcher(1, 100, b.work)
		begun, waits, stays := number(1), number(2), number(3)
		q.Add(begun, 100)
		synctest.Wait()
		q.Add(waits, 100)
		q.Add(stays, 1)
		if q.Drop(begun) {
			t.Error("Drop of a request that is being worked on = true")
		}
		if !q.Drop(waits) || q.Drop(waits) {
			t.Error("Drop of a request that waits is not true once, and then false")
		}
		close(b.gate)
		q.Close()
		b.check(t, []int{1}, []int{3})
	})
}

// Close waits for all requests, with any number of goroutines that work on them.
func TestBatcherClose(t *testing.T) {
	var sum atomic.Int64
	q := storekit.NewBatcher(4, 3, func(rs []*int) {
		for _, r := range rs {
			sum.Add(int64(*r))
		}
	})
	var adding sync.WaitGroup
	for range 8 {
		adding.Go(func() {
			for n := range 1000 {
				q.Add(number(n), 1)
			}
		})
	}
	adding.Wait()
	q.Close()
	if want := int64(8 * 999 * 1000 / 2); sum.Load() != want {
		t.Errorf("the sum of what was worked on = %d, want %d", sum.Load(), want)
	}
}

// A Batcher that idles does not keep requests that were worked on in memory.
func TestBatcherKeepsNothing(t *testing.T) {
	type request [1 << 10]byte
	synctest.Test(t, func(t *testing.T) {
		q := storekit.NewBatcher(1, 100, func([]*request) {})
		defer q.Close()
		add := func() weak.Pointer[request] {
			r := new(request)
			q.Add(r, 1)
			return weak.Make(r)
		}
		kept := add()
		synctest.Wait() // it was worked on
		runtime.GC()
		if kept.Value() != nil {
			t.Error("a request that was worked on is still kept")
		}
	})
}
