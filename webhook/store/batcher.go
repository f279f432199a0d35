package store

import (
	"slices"
	"sync"
)

// A Batcher collects the requests of concurrent calls while earlier requests are being
// stored, so that under load one transaction stores the requests of many calls. It does not
// limit how many requests wait: each caller waits for its own request, so there are never more
// requests than callers.
type Batcher[T any] struct {
	limit int
	work  func([]*T)

	mu      sync.Mutex
	arrived sync.Cond
	waiting []*T
	sizes   []int
	closed  bool
	running sync.WaitGroup
}

// NewBatcher starts n goroutines. Each goroutine takes the requests that were added first, as many
// as have at most limit bytes together, but at least one, and calls work with them.
func NewBatcher[T any](n, limit int, work func([]*T)) *Batcher[T] {
	b := &Batcher[T]{limit: limit, work: work}
	b.arrived.L = &b.mu
	for range n {
		b.running.Go(b.run)
	}
	return b
}

// Add queues a request of size bytes. It must not be called after Close.
func (b *Batcher[T]) Add(r *T, size int) {
	b.mu.Lock()
	b.waiting = append(b.waiting, r)
	b.sizes = append(b.sizes, size)
	b.mu.Unlock()
	b.arrived.Signal()
}

// Drop takes a request back, and reports whether that was possible. It is impossible once
// work has the request.
func (b *Batcher[T]) Drop(r *T) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.Index(b.waiting, r)
	if i >= 0 {
		b.waiting, b.sizes = slices.Delete(b.waiting, i, i+1), slices.Delete(b.sizes, i, i+1)
	}
	return i >= 0
}

// Len returns how many requests wait for work.
func (b *Batcher[T]) Len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.waiting)
}

func (b *Batcher[T]) run() {
	for {
		b.mu.Lock()
		for len(b.waiting) == 0 && !b.closed {
			b.arrived.Wait()
		}
		n, size := 0, 0
		for n < len(b.waiting) && (n == 0 || size+b.sizes[n] <= b.limit) {
			size += b.sizes[n]
			n++
		}
		batch := b.waiting[:n:n]
		b.waiting, b.sizes = b.waiting[n:], b.sizes[n:]
		b.mu.Unlock()
		if n == 0 {
			return
		}
		b.work(batch)
		clear(batch) // b.waiting may keep the array of batch, and so the requests, in memory
	}
}

// Close waits until work has returned for every request, and ends the goroutines.
func (b *Batcher[T]) Close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.arrived.Broadcast()
	b.running.Wait()
}
