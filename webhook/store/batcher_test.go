package store_test

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"weak"

	"github.com/hookferry/analytics/webhook/store"
)

// A batchLog records batches. Its work function takes a value from gate for each batch.
type batchLog struct {
	gate chan struct{} // a value for each batch that may begin

	mu      sync.Mutex
	batches [][]int
}

func (b *batchLog) work(rs []*int) {
	<-b.gate
	b.mu.Lock()
	defer b.mu.Unlock()
	var batch []int
	for _, r := range rs {
		batch = append(batch, *r)
	}
	b.batches = append(b.batches, batch)
}

func (b *batchLog) check(t *testing.T, want ...[]int) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.EqualFunc(b.batches, want, slices.Equal) {
		t.Errorf("got the batches %v, want %v", b.batches, want)
	}
}

func number(n int) *int { return &n }

// While the one goroutine works, requests gather into batches of up to 100 bytes. A larger request
// is a batch by itself.
func TestBatcherSharesWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &batchLog{gate: make(chan struct{}, 10)}
		q := store.NewBatcher(1, 100, b.work)
		q.Add(number(1), 10)
		synctest.Wait() // the goroutine works on request 1
		q.Add(number(2), 60)
		q.Add(number(3), 40) // 100 bytes together with request 2
		q.Add(number(4), 1)
		q.Add(number(5), 1000) // a batch by itself, over the limit
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

func TestBatcherDropsOnlyWaitingRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &batchLog{gate: make(chan struct{})}
		q := store.NewBatcher(1, 100, b.work)
		begun, waits, stays := number(1), number(2), number(3)
		q.Add(begun, 100)
		synctest.Wait()
		q.Add(waits, 100)
		q.Add(stays, 1)
		if q.Drop(begun) {
			t.Error("Drop of a request in work = true, want false")
		}
		if !q.Drop(waits) || q.Drop(waits) {
			t.Error("two Drops of a waiting request: want true, then false")
		}
		close(b.gate)
		q.Close()
		b.check(t, []int{1}, []int{3})
	})
}

// Close waits until all requests have been worked on, also if several goroutines work.
func TestBatcherCloseWaitsForAllRequests(t *testing.T) {
	var sum atomic.Int64
	q := store.NewBatcher(4, 3, func(rs []*int) {
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
		t.Errorf("the sum of the requests worked on = %d, want %d", sum.Load(), want)
	}
}

// An idle Batcher holds no reference to a request that was worked on.
func TestIdleBatcherFreesRequests(t *testing.T) {
	type request [1 << 10]byte
	synctest.Test(t, func(t *testing.T) {
		q := store.NewBatcher(1, 100, func([]*request) {})
		defer q.Close()
		add := func() weak.Pointer[request] {
			r := new(request)
			q.Add(r, 1)
			return weak.Make(r)
		}
		kept := add()
		synctest.Wait() // the request has been worked on
		runtime.GC()
		if kept.Value() != nil {
			t.Error("the Batcher still refers to a finished request, want that the collector frees it")
		}
	})
}
